"""`rounding` and `rounding-repair`: the linear relaxation, rounded.

Checkmate (MLSys 2020, section 5), two-phase rounding: solve the relaxation at 90% of the budget (the space for
what rounding adds), round S at a threshold, take the cheapest R for that S. The threshold is 0.5, or the best
of a sweep. `rounding` does that and no more. `rounding-repair` is ours: it takes the same rounded schedules,
whether they fit or not, and lets the local search drop what is too much and keep what there is space for.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from remint.graph import Plan
from remint.planners.contract import Infeasible, Outcome, Task
from remint.planners.decisions import decisions_of_sequence
from remint.planners.local_search import finish, run, start
from remint.planners.methods.demand import first_schedule
from remint.planners.solvers.integer_program import IntegerProgram, all_stages
from remint.planners.solvers.solve import solve

ALLOWANCE = 0.9
THRESHOLDS = (0.5, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9)
MOST_OPS = 700
REPAIR_MOVES = 200_000
LP_PART = 0.5  # of the time, so that there is some left to repair


def rounding(task: Task) -> Outcome:
    """Round the relaxation at 90% of the budget; the cheapest rounded schedule that fits."""
    schedules, bound = _rounded(task)
    fitting = [plan for plan in schedules if plan.peak_bytes <= task.budget]
    if not fitting:
        least = min(schedules, key=lambda plan: plan.peak_bytes, default=None)
        raise Infeasible("no rounded schedule is inside the budget", least.sequence if least else ())
    return Outcome(min(fitting, key=lambda plan: plan.cost).sequence, bound)


def rounding_repair(task: Task) -> Outcome:
    """Round the relaxation and repair the schedule by local search."""
    try:
        schedules, bound = _rounded(task, part=LP_PART)
    except Infeasible as failure:
        if failure.proven:
            raise
        schedules, bound = [], task.graph.cost
    engine = start(task, first_schedule(task))
    if schedules:
        nearest = min(schedules, key=lambda plan: (max(0, plan.peak_bytes - task.budget), plan.cost))
        engine.start(decisions_of_sequence(task.numbered, nearest.sequence))
    with contextlib.suppress(KeyboardInterrupt):
        run(task, engine, REPAIR_MOVES)
    return replace(finish(task, engine), bound=bound)


def _rounded(task: Task, part: float = 1.0) -> tuple[list[Plan], float]:
    numbered, graph = task.numbered, task.graph
    if len(graph.ops) > MOST_OPS:
        raise Infeasible(f"the program of {len(graph.ops)} ops is too large to build (over {MOST_OPS}): use auto")
    if not graph.ops:
        return [Plan.from_sequence(graph, ())], 0.0
    bound = graph.cost
    point = None
    program = None
    for budget in (int(task.budget * ALLOWANCE), task.budget):
        try:
            program = IntegerProgram(numbered, budget, all_stages(numbered), deadline=task.deadline)
        except TimeoutError as error:
            raise Infeasible(str(error)) from None
        solution = solve(program, relaxed=True, seconds=part * task.left())
        if budget == task.budget and solution.infeasible:
            raise Infeasible("even the relaxation has no solution", proven=True)
        if budget == task.budget:
            bound += solution.bound
        if solution.point is not None:
            point = solution.point
            if budget < task.budget:
                bound = graph.cost
                break
    if point is None or program is None:
        raise Infeasible("the relaxation was not solved in the time given")
    plans = []
    for threshold in THRESHOLDS:
        plans.append(Plan.from_sequence(graph, program.sequence_of(point, threshold)))
        if task.left() == 0:
            break
    return plans, bound
