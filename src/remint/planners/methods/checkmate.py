"""`checkmate`: the paper's mixed-integer program, exact, solved by HiGHS.

Jain et al., Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization, MLSys 2020, section 4:
one stage per op, all stages, all memory constraints. program.py has the equations and says where they differ
in form. We depart in the start: the paper leaves it to Gurobi to find a first solution, which HiGHS seldom does
on more than 100 ops, so that a short local search gives it one; the program is the paper's and so is the
optimum. Made for graphs of up to about 150 ops; `auto` is for the rest.
"""

from __future__ import annotations

from dataclasses import replace

from remint.graph import Plan
from remint.planners.contract import Infeasible, Outcome, Task
from remint.planners.cpu_clock import cpu_seconds
from remint.planners.local_search import finish, run, start
from remint.planners.methods.demand import first_schedule
from remint.planners.solvers.integer_program import IntegerProgram, all_stages
from remint.planners.solvers.solve import solve

MOST_OPS = 400
SEARCH_MOVES, SEARCH_MOVES_PER_OP = 100_000, 1000
SEARCH_PART = 0.2  # of the time, at most, for the start


def checkmate(task: Task) -> Outcome:
    """Solve the whole program, or return the best schedule and bound at the deadline."""
    n, base = len(task.graph.ops), task.graph.cost
    if n > MOST_OPS:
        raise Infeasible(f"the program of {n} ops is too large (over {MOST_OPS}): use auto, which refines a small one")
    if n == 0:
        return Outcome((), 0.0)
    searching = replace(task, deadline=min(task.deadline, cpu_seconds() + SEARCH_PART * task.left()))
    engine = start(searching, first_schedule(searching))
    try:
        run(searching, engine, min(SEARCH_MOVES, SEARCH_MOVES_PER_OP * n))
    except KeyboardInterrupt:
        if not engine.feasible:
            raise
        return finish(task, engine)
    known = Plan.from_sequence(task.graph, finish(task, engine).sequence) if engine.feasible else None
    stages = all_stages(task.numbered)
    try:
        program = IntegerProgram(task.numbered, task.budget, stages, stages[1:], task.deadline)
    except (TimeoutError, KeyboardInterrupt) as error:
        if known is not None:
            return Outcome(known.sequence, base)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise Infeasible(str(error)) from None
    solution = solve(
        program,
        relaxed=False,
        seconds=task.left(),
        seed=task.seed,
        start=program.solution_of(known.sequence) if known is not None else None,
        on_progress=lambda cost, bound: task.report("checkmate", base + cost, base + bound),
    )
    if solution.infeasible:
        raise Infeasible("the program has no solution: no schedule of Checkmate's class is inside the budget")
    bound = base + solution.bound
    if solution.point is not None:
        made = Plan.from_sequence(task.graph, program.sequence_of(solution.point))
        # The solver works with a tolerance; what it takes for the last byte may be one too many.
        if made.peak_bytes <= task.budget and (known is None or made.cost < known.cost):
            known = made
    if known is None:
        raise Infeasible("no solution was found in the time given")
    return Outcome(known.sequence, bound)
