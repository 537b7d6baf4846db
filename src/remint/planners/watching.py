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
# States that a search for a plan with a tighter budget may look into, at least and in parts of those of the bound.
TIGHTER_LEAST, TIGHTER_PART = 4000, 0.25
MOMENTS = 8  # at which a schedule that breaks the budget shows what to watch


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
    watched = [v for v, nbytes in enumerate(numbered.nbytes) if nbytes > 0 and nbytes >= LARGE * largest]
    bound = base
    search: BackwardSearch | None = None
    while len(watched) <= MOST_WATCHED:
        search = BackwardSearch(numbered.native, float(task.budget), watched, search)
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
        yield from _tighter(task, limit, watched, sequence, bound, search)
        watched = watched + more


def _tighter(
    task: Task,
    limit: Callable[[], float],
    watched: list[int],
    sequence: tuple[int, ...],
    bound: float,
    easier: BackwardSearch,
) -> Iterator[Watched]:
    """Yield a schedule for a budget that leaves space for what nobody watches: it may keep the real one."""
    numbered, base = task.numbered, task.graph.cost
    excess = int(numbered.least_memory.peak(sequence)) - task.budget
    search = BackwardSearch(numbered.native, float(task.budget - excess), watched, easier)
    most = max(TIGHTER_LEAST, TIGHTER_PART * easier.looked_into)
    while not search.ended and not search.full and search.looked_into < most:
        looked_into = search.looked_into
        search.run(SLICE, limit() - base)
        yield Watched(bound, states=search.looked_into - looked_into)
    if search.found:
        yield Watched(bound, tuple(search.sequence))


def _missed(numbered: NumberedGraph, budget: int, sequence: Sequence[int], watched: list[int]) -> list[int]:
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
        for v in sorted(there.difference(watched, more), key=lambda v: (-nbytes[v], v)):
            if excess <= 0:
                break
            more.add(v)
            excess -= nbytes[v]
    return sorted(v for v in more if nbytes[v] > 0)
