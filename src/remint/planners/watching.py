"""Exact plans of small graphs: the cheapest schedule, from few values at first and more where that is wrong.

A best-first search over sets of values (csrc/planner/backward_search.h) finds the cheapest schedule of graphs with a
few dozen values. What makes it slow is small values: each is kept or not, and that hardly matters. So only some values
are watched, the largest at first. The others have no bytes, except while an op reads or makes them. The cheapest
schedule of that problem is a bound. If it keeps the budget when all bytes count, it is optimal. If not, values that
are there when it does not are watched, too, and the search begins anew. The principle is that of refinement.py, and of
abstraction refinement in model checking (Clarke et al., 2000).

The searches are measured in states, not in seconds: the same question has the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from remint._core import BackwardSearch
from remint.graph.numbered import NumberedGraph
from remint.planners.contract import Task

MOST_OPS = 250
MOST_WATCHED = 256  # ValueSet::kMost
SLICE = 4000  # states between two looks at the clock
LARGE = 0.5  # of the largest value: what is watched from the beginning
TIGHTER_EFFORT, TIGHTER_LEAST = 2, 20_000  # states that a plan may cost, in parts of those that a bound cost
TIGHTER_TRIES = 3
MOMENTS = 2  # at which a schedule that breaks the budget shows what to watch


@dataclass(frozen=True)
class Watched:
    """What a slice of the search gave: a bound on cost, and a schedule, which may break the budget."""

    bound: float
    sequence: tuple[int, ...] | None = None
    infeasible: bool = False  # no schedule keeps the budget, whatever its order
    states: int = 0


def watch(task: Task, limit: Callable[[], float]) -> Iterator[Watched]:
    """Yield better bounds and schedules, a slice at a time, until one schedule is proven or no state fits into memory.

    Schedules that cost `limit()` or more are of no interest; it is asked before every slice.
    """
    numbered, base = task.numbered, task.graph.cost
    if len(numbered.cost) > MOST_OPS:
        return
    largest = max(numbered.nbytes, default=0)
    watched = {v for v, nbytes in enumerate(numbered.nbytes) if nbytes > 0 and nbytes >= LARGE * largest}
    bound = base
    while len(watched) <= MOST_WATCHED:
        search = BackwardSearch(numbered.native, float(task.budget), sorted(watched))
        while not search.ended:
            if search.full:
                return
            looked_into = search.looked_into
            search.run(SLICE, limit() - base)
            # A part in 10^9 less, for what was rounded on the way.
            bound = max(bound, base + search.bound * (1 - 1e-9))
            if not search.ended:
                yield Watched(bound, states=search.looked_into - looked_into)
        if not search.found:
            yield Watched(bound, infeasible=math.isinf(bound))
            return
        sequence = tuple(search.sequence)
        yield Watched(bound, sequence)
        more = _missed(numbered, task.budget, sequence, watched)
        if not more:
            return
        yield from _tighter(task, limit, sorted(watched), sequence, bound, search.looked_into)
        watched |= more


def _tighter(
    task: Task,
    limit: Callable[[], float],
    watched: list[int],
    sequence: tuple[int, ...],
    bound: float,
    effort: int,
) -> Iterator[Watched]:
    """Yield schedules for a budget that leaves space for what nobody watches: they may keep the real one."""
    numbered, base = task.numbered, task.graph.cost
    budget = task.budget
    for _ in range(TIGHTER_TRIES):
        excess = int(numbered.least_memory.peak(sequence)) - task.budget
        if excess <= 0:
            return
        budget -= excess
        search = BackwardSearch(numbered.native, float(budget), watched)
        most = max(TIGHTER_LEAST, TIGHTER_EFFORT * effort)
        while not search.ended and not search.full and search.looked_into < most:
            looked_into = search.looked_into
            search.run(SLICE, limit() - base)
            yield Watched(bound, states=search.looked_into - looked_into)
        if not search.found:
            return
        sequence = tuple(search.sequence)
        yield Watched(bound, sequence)


def _missed(numbered: NumberedGraph, budget: int, sequence: Sequence[int], watched: set[int]) -> set[int]:
    """Return values to watch: the largest ones that are there where memory is short, enough to make up for it."""
    nbytes = numbered.nbytes
    more: set[int] = set()
    after = set(numbered.results)
    moments: list[tuple[int, set[int]]] = []
    for i in reversed(sequence):
        there = after.union(numbered.inputs[i], numbered.outputs[i])
        moments.append((numbered.graph.constant_bytes + sum(nbytes[v] for v in there), there))
        after = after.difference(numbered.outputs[i]).union(numbered.inputs[i])
    for held, there in sorted(moments, key=lambda moment: -moment[0])[:MOMENTS]:
        excess = held - budget - sum(nbytes[v] for v in there & more)
        for v in sorted(there - watched - more, key=lambda v: (-nbytes[v], v)):
            if excess <= 0:
                break
            more.add(v)
            excess -= nbytes[v]
    return {v for v in more if nbytes[v] > 0}
