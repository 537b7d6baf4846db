"""Exact plans of small graphs: the cheapest schedule, from few values at first and more where that is wrong.

A best-first search over sets of values (csrc/planner/backward_search.h) finds the cheapest schedule of graphs with a
few dozen values. What makes it slow is small values: each is kept or not, and that hardly matters. So only some values
are watched, the largest at first. The others have no bytes, except while an op reads or makes them. The cheapest
schedule of that problem is a bound. If it keeps the budget when all bytes count, it is optimal. If not, values that
are there when most is held are watched, too, as few as it takes to rule the schedule out, and the search begins anew
with what it has learned. Few at a time: each search then has little to find out that the last one did not know. The
principle is that of refinement.py, and of abstraction refinement in model checking (Clarke et al., 2000).

The searches are measured in states, not in seconds: the same question has the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from remint._core import BackwardSearch, SearchProblem
from remint.graph.numbered import NumberedGraph
from remint.planners.contract import Task

MOST_OPS = 250
MOST_WATCHED = 256  # ValueSet::kMost
SLICE = 4000  # states between two looks at the clock
LARGE = 0.5  # of the largest value: what is watched from the beginning
# Where the search before looked into so many states, those for the beginnings of the step come first: in parts of it.
PREFIXES_FROM, PREFIXES_PART, PREFIX_SLICE = 20_000, 0.5, 20_000
# States that a search for a plan with a tighter budget may look into, at least and in parts of those of the bound.
TIGHTER_LEAST, TIGHTER_PART = 4000, 0.25
# In a search for any plan: how much more what is left to pay counts than what was paid, and the states it looks into.
HURRY, HURRIED_STATES = 5.0, 80_000


@dataclass(frozen=True)
class Watched:
    """What a slice of the search gave: a bound on cost, and a schedule, which may break the budget."""

    bound: float
    sequence: tuple[int, ...] | None = None
    infeasible: bool = False  # no schedule keeps the budget, whatever its order
    states: int = 0


@dataclass(frozen=True)
class Bundled:
    """A graph's numbers with values that one op makes and the same ops read as one: all are held, or none."""

    native: SearchProblem
    nbytes: list[int]
    inputs: list[list[int]]
    outputs: list[list[int]]
    results: list[int]
    from_nothing: list[float]  # per value, what it costs to make it when nothing is there

    @classmethod
    def of(cls, numbered: NumberedGraph) -> Bundled:
        """Bundle the values of a graph."""
        number: dict[tuple[int, ...], int] = {}
        bundle = [
            number.setdefault((made, *users), len(number))
            for made, users in zip(numbered.maker, numbered.users, strict=True)
        ]
        nbytes = [0] * len(number)
        for v, size in enumerate(numbered.nbytes):
            nbytes[bundle[v]] += size

        def bundled(values: list[int]) -> list[int]:
            return list(dict.fromkeys(bundle[v] for v in values))

        inputs, outputs = [*map(bundled, numbered.inputs)], [*map(bundled, numbered.outputs)]
        results = bundled(numbered.results)
        native = SearchProblem(
            cost=numbered.cost,
            again=[op.rematerializable for op in numbered.graph.ops],
            inputs=inputs,
            outputs=outputs,
            bytes=[float(size) for size in nbytes],
            results=results,
            constant_bytes=float(numbered.graph.constant_bytes),
        )
        needed: list[frozenset[int]] = []  # per op, the ops it cannot do without
        from_nothing = [0.0] * len(nbytes)
        makes: dict[int, int] = {}
        for i, made in enumerate(outputs):
            ops = frozenset({i}).union(*(needed[makes[v]] for v in inputs[i]))
            needed.append(ops)
            for v in made:
                makes[v] = i
                from_nothing[v] = sum(numbered.cost[k] for k in ops)
        return cls(native, nbytes, inputs, outputs, results, from_nothing)


def watch(task: Task, limit: Callable[[], float]) -> Iterator[Watched]:
    """Yield better bounds and schedules, a slice at a time, until one schedule is proven or no state fits into memory.

    Schedules that cost `limit()` or more are of no interest; it is asked before every slice.
    """
    base = task.graph.cost
    if len(task.graph.ops) > MOST_OPS:
        return
    problem = Bundled.of(task.numbered)
    largest = max(problem.nbytes, default=0)
    watched = [v for v, nbytes in enumerate(problem.nbytes) if nbytes > 0 and nbytes >= LARGE * largest]
    bound = base
    yield from _hurried(task, limit, problem)
    search: BackwardSearch | None = None
    while len(watched) <= MOST_WATCHED:
        easier, search = search, BackwardSearch(problem.native, float(task.budget), watched, search)
        if easier is not None and easier.looked_into >= PREFIXES_FROM:
            for states in _prefixes(search, easier.looked_into):
                yield Watched(bound, states=states)
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
        more = _missed(problem, task.budget - task.graph.constant_bytes, sequence, watched)
        if not more:
            return
        yield from _tighter(task, limit, problem, watched, sequence, bound, search)
        watched = watched + more


def _prefixes(search: BackwardSearch, looked_into: int) -> Iterator[int]:
    """Search for the cheapest beginnings of the step first; yield the states of each slice."""
    before, more = 0, True
    while more and before < PREFIXES_PART * looked_into:
        more = not search.learn_prefixes(PREFIX_SLICE)
        yield search.looked_into - before
        before = search.looked_into


def _hurried(task: Task, limit: Callable[[], float], problem: Bundled) -> Iterator[Watched]:
    """Yield a schedule that keeps the budget, if a search that prefers states near the beginning meets one."""
    base = task.graph.cost
    watched = [v for v, nbytes in enumerate(problem.nbytes) if nbytes > 0]
    if len(watched) > MOST_WATCHED:
        return
    search = BackwardSearch(problem.native, float(task.budget), watched, None, HURRY)
    while not search.ended and not search.full and search.looked_into < HURRIED_STATES:
        looked_into = search.looked_into
        search.run(SLICE, limit() - base)
        yield Watched(base, states=search.looked_into - looked_into)
    if search.found:
        yield Watched(base, tuple(search.sequence))


def _tighter(
    task: Task,
    limit: Callable[[], float],
    problem: Bundled,
    watched: list[int],
    sequence: tuple[int, ...],
    bound: float,
    easier: BackwardSearch,
) -> Iterator[Watched]:
    """Yield a schedule for a budget that leaves space for what nobody watches: it may keep the real one."""
    base = task.graph.cost
    excess = int(task.numbered.least_memory.peak(sequence)) - task.budget
    search = BackwardSearch(problem.native, float(task.budget - excess), watched, easier)
    most = max(TIGHTER_LEAST, TIGHTER_PART * easier.looked_into)
    while not search.ended and not search.full and search.looked_into < most:
        looked_into = search.looked_into
        search.run(SLICE, limit() - base)
        yield Watched(bound, states=search.looked_into - looked_into)
    if search.found:
        yield Watched(bound, tuple(search.sequence))


def _missed(problem: Bundled, space: int, sequence: Sequence[int], watched: list[int]) -> list[int]:
    """Return values to watch: the largest ones that are there when most is, as few as break the budget.

    Of values of one size, those that cost most to make come first.
    """
    nbytes = problem.nbytes
    worst, held, there, own = -1, set[int](), set[int](), set[int]()
    after = set(problem.results)
    for i in reversed(sequence):
        touched = {*problem.inputs[i], *problem.outputs[i]}
        there = after | touched
        most = sum(nbytes[v] for v in there)
        if most > worst:
            worst, held, own = most, there, touched
        after = after.difference(problem.outputs[i]).union(problem.inputs[i])
    if worst <= space:
        return []
    counted = own.union(v for v in watched if v in held)
    room = space - sum(nbytes[v] for v in counted)
    more: list[int] = []
    for v in sorted(held - counted, key=lambda v: (-nbytes[v], -problem.from_nothing[v], v)):
        if room < 0:
            break
        more.append(v)
        room -= nbytes[v]
    return more
