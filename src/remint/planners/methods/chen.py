"""`chen-sqrt`, `chen-greedy` and their `-ap` versions: keep the values at segment ends, rematerialize a
segment at a time.

Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016: sqrt(n) segments, or greedily cut when a
segment has made a given number of bytes, that number swept. For graphs that are no chains, as in Checkmate
(MLSys 2020, section 6): the *linearised* version takes every forward op in order as a chain; the *AP* version
lets only articulation points end a segment. We depart in one thing: what a cut must hold is every value that
crosses it, so that the linearised version is right on any graph too.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from remint._core import Search
from remint.graph.numbered import NumberedGraph
from remint.planners.articulation_points import articulation_points
from remint.planners.contract import Infeasible, Outcome, Task
from remint.planners.decisions import Decision, drop_unless

SWEEP = 40


def chen_sqrt(task: Task) -> Outcome:
    """Cut the forward phase into sqrt(n) segments."""
    return cheapest(task, _sqrt(task.numbered, list(range(task.numbered.turn))), "chen-sqrt")


def chen_sqrt_ap(task: Task) -> Outcome:
    """Cut at sqrt(m) of the m articulation points."""
    return cheapest(task, _sqrt(task.numbered, articulation_points(task.numbered)), "chen-sqrt-ap")


def chen_greedy(task: Task) -> Outcome:
    """Cut whenever a segment has made enough bytes; the cheapest that fits over a sweep of that size."""
    return cheapest(task, _greedy(task.numbered, list(range(task.numbered.turn))), "chen-greedy")


def chen_greedy_ap(task: Task) -> Outcome:
    """The same, with segments that end at articulation points only."""
    return cheapest(task, _greedy(task.numbered, articulation_points(task.numbered)), "chen-greedy-ap")


def cut_values(numbered: NumberedGraph, cuts: Iterable[int]) -> set[int]:
    """Return the values that cross any of the cuts, which are right after these forward ops."""
    ends = sorted(cuts)
    kept: set[int] = set()
    for v, users in enumerate(numbered.users):
        forward = [u for u in users if u < numbered.turn]
        last = forward[-1] if forward else (numbered.turn if users else -1)
        after = bisect_left(ends, numbered.maker[v])
        if after < len(ends) and ends[after] < last:
            kept.add(v)
    return kept


def _sqrt(numbered: NumberedGraph, points: Sequence[int]) -> Iterator[list[Decision]]:
    segment = max(1, math.ceil(math.sqrt(len(points))))
    yield drop_unless(numbered, cut_values(numbered, points[segment - 1 :: segment]))


def _greedy(numbered: NumberedGraph, points: Sequence[int]) -> Iterator[list[Decision]]:
    allowed = set(points)
    made = [sum(numbered.nbytes[v] for v in numbered.outputs[i]) for i in range(numbered.turn)]
    total = sum(made)
    seen: set[tuple[int, ...]] = set()
    for step in range(SWEEP + 1):
        limit = total * (0.002 ** (step / SWEEP))
        cuts, size = [], 0
        for i in range(numbered.turn):
            size += made[i]
            if size > limit and i in allowed:
                cuts.append(i)
                size = 0
        if tuple(cuts) not in seen:
            seen.add(tuple(cuts))
            yield drop_unless(numbered, cut_values(numbered, cuts))


def cheapest(task: Task, schedules: Iterable[list[Decision]], name: str) -> Outcome:
    """Return the cheapest of the schedules that fit."""
    engine = Search(task.numbered.native, float(task.budget), 0, [])
    best: tuple[float, list[int]] | None = None
    least: tuple[float, list[int]] | None = None
    for decisions in schedules:
        engine.start(decisions)
        if engine.peak <= task.budget and (best is None or engine.cost < best[0]):
            best = engine.cost, engine.sequence
        if least is None or engine.peak < least[0]:
            least = engine.peak, engine.sequence
        if task.left() == 0:
            break
    if best is None:
        raise Infeasible(f"{name} has no schedule inside the budget", least[1] if least else ())
    return Outcome(tuple(best[1]))
