"""The native local search, as planners use it: where it starts, how it is run until a deadline, what it found."""

from __future__ import annotations

import math
from collections.abc import Sequence

from remint._core import Search
from remint.graph.numbered import NumberedGraph
from remint.planners.contract import Infeasible, Outcome, Task
from remint.planners.decisions import (
    Decision,
    decisions_of_sequence,
    drop_unless,
    sequence_of_decisions,
    staged,
)
from remint.planners.repeated_layers import twins

SLICE = 4000  # moves between two looks at the clock
START_SECONDS_PER_OP = 5e-5  # with less time than that left, a search would start too late


def start(task: Task, first: Sequence[int] | None = None) -> Search:
    """Return an engine that stands at the best of the schedules that are quickly made.

    `first` and the task's hint are among them; either may leave the class, and then begins from its stages.
    """
    numbered = task.numbered
    engine = Search(numbered.native, float(task.budget), task.seed, twins(numbered))
    best = (engine.excess, engine.cost, list[Decision]())

    def consider(decisions: list[Decision]) -> None:
        nonlocal best
        engine.start(decisions)
        best = min(best, (engine.excess, engine.cost, decisions), key=lambda rank: rank[:2])

    for sequence in (first, task.hint):
        if sequence is not None:
            consider(decisions_of_sequence(numbered, staged(sequence)))
    if not engine.feasible:
        for decisions in quick_starts(numbered):
            consider(decisions)
            if task.left() == 0:
                break
    engine.start(best[2])
    return engine


def quick_starts(numbered: NumberedGraph) -> list[list[Decision]]:
    """Return schedules that keep every k-th forward op's values, for a few k, and nothing else."""
    forward = range(numbered.turn)
    steps = sorted({max(1, round(numbered.turn ** (e / 8))) for e in range(2, 9)})
    return [drop_unless(numbered, (v for i in forward if i % k == 0 for v in numbered.outputs[i])) for k in steps]


def run(task: Task, engine: Search, moves: int, *, target: float = -math.inf, bound: float | None = None) -> None:
    """Make moves in slices, so that the deadline and Ctrl-C are met in between; stop at cost `target`."""
    end = engine.moves + moves
    told = math.inf
    piece = max(100, min(SLICE, SLICE * 1000 // max(1, len(task.graph.ops))))
    while True:
        if engine.feasible and engine.best_cost < told:
            told = engine.best_cost
            task.report("search", told, bound)
        if (engine.feasible and engine.best_cost <= target) or engine.moves >= end or task.left() == 0:
            return
        engine.run(min(piece, end - engine.moves))


def finish(task: Task, engine: Search) -> Outcome:
    """Return the best schedule the engine has met."""
    if not engine.feasible:
        raise Infeasible(
            "local search met no schedule inside the budget",
            sequence_of_decisions(task.numbered, engine.least),
        )
    return Outcome(tuple(sequence_of_decisions(task.numbered, engine.best)))


def tidy(task: Task, sequence: Sequence[int]) -> list[int]:
    """Take back drops, the dearest first, wherever the value can as well stay inside the budget."""
    numbered = task.numbered
    engine = Search(numbered.native, float(task.budget), 0, [])
    decisions = decisions_of_sequence(numbered, sequence)
    engine.start(decisions)
    if engine.excess > 0:
        return list(sequence)
    cost, best = engine.cost, list(sequence)
    for decision in sorted((d for d in decisions if d[0]), key=lambda d: -numbered.cost[numbered.maker[d[1]]]):
        if task.left() == 0:
            break
        fewer = [d for d in decisions if d != decision]
        engine.start(fewer)
        if engine.excess <= 0 and engine.cost <= cost:
            decisions, cost, best = fewer, engine.cost, engine.sequence
    return best
