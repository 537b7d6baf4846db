"""`demand`: op after op, recompute the missing inputs in the cheapest way that fits; drop what is worth least.

Ours, for budgets close to the least: where MOCCASIN (ICML 2023) first minimises the peak, this begins from
what every op cannot do without. Like DTR (ICLR 2021) it evicts by cost over bytes and time, but it knows when
a value is read next, and it finds the cheapest way to make a value, with what to drop and recompute on the way,
by a best-first walk (csrc/planner/least_memory.h). Its schedules may leave the class of the other planners: within a
stage, an op may run several times and out of the graph's order.
"""

from __future__ import annotations

import math

from remint.graph import Plan
from remint.planners.contract import Infeasible, Outcome, Task

EFFORT = 2000
PATIENCE = (1.5, 2.0, 1.0, 0.7, 3.0)  # how much less a value is worth the longer it waits
MOST_OPS_FOR_ALL = 3000
LEAST_SECONDS = 0.2  # however late it is: without a schedule there is no plan
STEPS, SECONDS_FOR_LEAST = 12, 0.6  # of the bisection for the smallest budget


def demand(task: Task) -> Outcome:
    """Return the schedule, or raise if there is an op for which no way is found."""
    sequence = first_schedule(task)
    if sequence is None:
        raise Infeasible("an op was met whose inputs could not be made inside the budget")
    return Outcome(sequence)


def first_schedule(task: Task) -> tuple[int, ...] | None:
    """Return the cheapest of a few schedules, which are there in milliseconds, or None."""
    numbered = task.numbered
    if not numbered.cost:
        return ()
    found: list[tuple[float, list[int]]] = []
    for patience in PATIENCE if len(numbered.cost) <= MOST_OPS_FOR_ALL else PATIENCE[:1]:
        sequence = numbered.least_memory.schedule(
            float(task.budget), EFFORT, numbered.turn, patience, task.left() + LEAST_SECONDS
        )
        if sequence:
            found.append((math.fsum(map(numbered.cost.__getitem__, sequence)), sequence))
    return tuple(min(found)[1]) if found else None


def least_peak(task: Task, known: Plan, seconds: float) -> Plan:
    """Return a schedule of a peak as small as bisection finds, or `known` if none is smaller."""
    numbered = task.numbered
    low = budget = task.graph.min_budget_bytes
    for _ in range(STEPS):
        if budget >= known.peak_bytes:
            break
        sequence = numbered.least_memory.schedule(float(budget), EFFORT, numbered.turn, PATIENCE[0], seconds / STEPS)
        try:
            smaller = Plan.from_sequence(task.graph, sequence) if sequence else None
        except ValueError:  # it needs an input once more that was consumed for good
            smaller = None
        if smaller is not None and smaller.peak_bytes < known.peak_bytes:
            known = smaller
        else:
            low = budget + 1
        budget = (low + known.peak_bytes) // 2
    return known
