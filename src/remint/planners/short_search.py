"""Plans by short searches, for a caller that needs many of them: the division of a step among several graphs.

The searches are limited by their moves, not by the clock: the same question has the same answer.
"""

from __future__ import annotations

import math

from remint.graph import Graph, Plan
from remint.graph.numbered import NumberedGraph
from remint.planners.contract import Task
from remint.planners.cpu_clock import cpu_seconds
from remint.planners.decisions import sequence_of_decisions
from remint.planners.local_search import run, start
from remint.planners.methods.demand import least_peak
from remint.planners.methods.keep_and_drop import drop

MOVES_PER_OP, MOST_MOVES, MOST_SECONDS = 400, 30_000, 10.0
BISECTIONS = 6
SECONDS_FOR_LEAST = 10.0  # rarely reached: the effort is limited, too


def quick_plan(graph: Graph, budget: int, hint: Plan | None = None, seed: int = 0) -> Plan:
    """Return a plan by a short search from `hint`: inside `budget`, or as close to it as was met.

    The search is limited by its moves, not by the clock: the same question has the same answer.
    """
    if graph.peak_bytes <= budget:
        return Plan.from_sequence(graph, range(len(graph.ops)))
    task = Task(numbered=NumberedGraph.of(graph), budget=budget, deadline=cpu_seconds() + MOST_SECONDS, seed=seed)
    engine = start(task, hint.sequence if hint is not None else None)
    run(task, engine, min(MOST_MOVES, MOVES_PER_OP * len(graph.ops)))
    decisions = engine.best if engine.feasible else engine.least
    found = Plan.from_sequence(graph, sequence_of_decisions(task.numbered, decisions))
    if hint is None or found.peak_bytes <= budget < hint.peak_bytes:
        return found
    # Both fit, or none: the cheaper one, or the smaller one.
    if found.peak_bytes <= budget:
        return min(found, hint, key=lambda p: p.cost)
    return min(found, hint, key=lambda p: p.peak_bytes)


def smallest_plan(graph: Graph, seed: int = 0) -> Plan:
    """Return the plan of the smallest peak that bisection with short searches finds, whatever it costs."""
    keep_all = Plan.from_sequence(graph, range(len(graph.ops)))
    dropped = Task(numbered=NumberedGraph.of(graph), budget=keep_all.peak_bytes, deadline=math.inf)
    best = min(keep_all, Plan.from_sequence(graph, drop(dropped).sequence), key=lambda p: p.peak_bytes)
    best = least_peak(dropped, best, SECONDS_FOR_LEAST)
    low = graph.min_budget_bytes
    for _ in range(BISECTIONS):
        middle = (low + best.peak_bytes) // 2
        if middle >= best.peak_bytes:
            break
        best = quick_plan(graph, middle, best, seed)
        if best.peak_bytes > middle:
            low = middle + 1
    return best
