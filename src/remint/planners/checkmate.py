"""`checkmate`: the paper's mixed-integer program, exact, solved by HiGHS.

Jain et al., Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization, MLSys 2020, section 4:
one stage per op, all stages, all memory constraints. program.py has the equations and says where they differ
in form. Made for graphs of up to about 150 ops; `auto` is for the rest.
"""

from __future__ import annotations

from remint.plan import Plan
from remint.planners.base import Infeasible, Outcome, Task
from remint.planners.highs import solve
from remint.planners.program import Program, all_stages

MOST_OPS = 400


def checkmate(task: Task) -> Outcome:
    """Solve the whole program, or return the best schedule and bound at the deadline."""
    n, base = len(task.graph.ops), task.graph.cost
    if n > MOST_OPS:
        raise Infeasible(f"the program of {n} ops is too large (over {MOST_OPS}): use auto, which refines a small one")
    if n == 0:
        return Outcome((), 0.0)
    stages = all_stages(task.problem)
    try:
        program = Program(task.problem, task.budget, stages, stages[1:], task.deadline)
    except TimeoutError as error:
        raise Infeasible(str(error)) from None
    solution = solve(
        program,
        relaxed=False,
        seconds=task.left(),
        seed=task.seed,
        on_progress=lambda cost, bound: task.report("checkmate", base + cost, base + bound),
    )
    if solution.point is None:
        raise Infeasible(
            "the program has no solution" if solution.infeasible else "no solution was found in the time given",
            proven=solution.infeasible,
        )
    sequence = program.sequence_of(solution.point)
    if Plan.from_sequence(task.graph, sequence).peak_bytes > task.budget:
        raise Infeasible("the solver's solution breaks the budget after rounding to whole numbers", sequence)
    return Outcome(tuple(sequence), base + solution.bound)
