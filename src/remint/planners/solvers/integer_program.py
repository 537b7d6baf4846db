"""The rematerialization program: Checkmate's, with the memory rows written so that few of them are needed.

Letters as in Checkmate (MLSys 2020, section 4), per value v and op i of a graph with several outputs per op:

    S[g, v]     v is resident when group g begins
    R[g, i]     i is rematerialized in group g
    D[t, j, v]  v is read by j or later in stage t, or resident after it (1 - FREE in Checkmate)
    U[t, k]     bytes resident at op k of stage t

We depart in three ways. A *group* is a run of stages; with one stage per group the program is Checkmate's,
with longer groups it is a relaxation of it (a rematerialization counts once per group, memory counts at the
end of each group), which is what gives bounds for large graphs in seconds. At the end of a stage what is
resident is known from S alone, so U and FREE are needed only within stages that rematerialize, and D[t, j, v]
≥ R[t, j] one by one is tighter than Checkmate's count of hazards. Only S must be integer: for a given S the
least R is integer by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from remint.graph.numbered import NumberedGraph
from remint.planners.cpu_clock import cpu_seconds
from remint.planners.decisions import intervals_of, sequence_of_kept, stages_of


@dataclass
class IntegerProgram:
    """Columns and rows of the program for one numbered, budget and choice of groups."""

    numbered: NumberedGraph
    budget: int
    starts: tuple[int, ...]  # first stage of each group; the last group is the end of the step alone
    inner: tuple[int, ...] = ()  # stages, each a group of its own, whose inside is constrained too
    deadline: float = math.inf  # in CPU time, when building it is given up, with a TimeoutError

    cost: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    keep: dict[tuple[int, int], int] = field(default_factory=dict)  # S
    again: dict[tuple[int, int], int] = field(default_factory=dict)  # R
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)
    row_start: list[int] = field(default_factory=lambda: [0])
    index: list[int] = field(default_factory=list)
    coefficient: list[float] = field(default_factory=list)
    feasible: bool = True

    def __post_init__(self) -> None:
        n = len(self.numbered.cost)
        if not self.starts or self.starts[0] != 0 or self.starts[-1] != n:
            raise ValueError("groups begin at stage 0 and the last one is the end of the step")
        # Whatever has no bytes is never dropped.
        self.heavy = [b > 0 for b in self.numbered.nbytes]
        self.repeatable = [op.rematerializable for op in self.numbered.graph.ops]
        self._columns()
        self._dependencies()
        self._memory_at_ends()
        for t in self.inner:
            self._check_time()
            self._memory_inside(t)

    def _check_time(self) -> None:
        if cpu_seconds() > self.deadline:
            raise TimeoutError("the program was not built in the time given")

    def _column(self, cost: float, integer: bool) -> int:
        self.cost.append(cost)
        self.integer.append(integer)
        return len(self.cost) - 1

    def _row(self, entries: Iterable[tuple[int, float]], lower: float, upper: float) -> None:
        for column, coefficient in entries:
            self.index.append(column)
            self.coefficient.append(coefficient)
        self.row_start.append(len(self.index))
        self.row_lower.append(lower)
        self.row_upper.append(upper)

    def _columns(self) -> None:
        numbered = self.numbered
        for g, start in enumerate(self.starts):
            if g == 0:
                continue
            self._check_time()
            for v, made in enumerate(numbered.maker):
                if made < start and self.heavy[v]:
                    self.keep[g, v] = self._column(0.0, True)
            for i in range(start):
                if self.repeatable[i]:
                    self.again[g, i] = self._column(numbered.cost[i], False)

    def _source(self, g: int, v: int) -> list[tuple[int, float]] | None:
        """Columns of which one must be 1 for v, made before group g, to be there; None if it always is."""
        if not self.heavy[v]:
            return None
        columns = [(self.keep[g, v], 1.0)]
        if (g, self.numbered.maker[v]) in self.again:
            columns.append((self.again[g, self.numbered.maker[v]], 1.0))
        return columns

    def _dependencies(self) -> None:
        numbered, n = self.numbered, len(self.numbered.cost)
        for g, start in enumerate(self.starts):
            if g == 0:
                continue
            self._check_time()
            end = self.starts[g + 1] if g + 1 < len(self.starts) else n + 1
            # [Constraint] first runs find their inputs: 1 ≤ S + R
            own = {v for j in range(start, min(end, n)) for v in numbered.inputs[j] if numbered.maker[v] < start}
            if end == n + 1:
                own.update(numbered.results)
            for v in sorted(own):
                source = self._source(g, v)
                if source is not None:
                    self._row(source, 1.0, math.inf)
            # [Constraint] rematerializations find their inputs: R[g, i] ≤ S + R
            for i in range(start):
                if (g, i) not in self.again:
                    continue
                for v in numbered.inputs[i]:
                    source = self._source(g, v)
                    if source is not None:
                        self._row([*source, (self.again[g, i], -1.0)], 0.0, math.inf)
            # [Constraint] only what was at hand stays: S[g + 1, v] ≤ S[g, v] + R[g, maker of v]
            if end <= n:
                for v, made in enumerate(numbered.maker):
                    source = self._source(g, v) if made < start else None
                    if source is not None:
                        self._row([*source, (self.keep[g + 1, v], -1.0)], 0.0, math.inf)

    def _memory_at_ends(self) -> None:
        # [Constraint] at the last op of a group: its inputs and outputs, and all that stays
        numbered = self.numbered
        space = self.budget - numbered.graph.constant_bytes
        for g in range(len(self.starts) - 1):
            last = self.starts[g + 1] - 1
            held = set(numbered.inputs[last]) | set(numbered.outputs[last])
            fixed = sum(numbered.nbytes[v] for v in held)
            entries = [
                (self.keep[g + 1, v], float(numbered.nbytes[v]))
                for v, made in enumerate(numbered.maker)
                if made <= last and v not in held and self.heavy[v]
            ]
            if fixed > space:
                self.feasible = False
            if sum(b for _, b in entries) + fixed > space:
                self._row(entries, -math.inf, float(space - fixed))

    def _memory_inside(self, t: int) -> None:
        # [Constraint] at each op k that stage t may rematerialize: what k makes, what is read at k or later
        # or stays (D), and what waits from before although its maker comes after k (S). U[t, k], here in
        # parts of the space and so at most 1, is tied to U[t, k + 1] by what differs: values made by k, by
        # k + 1, and read by k.
        numbered, n = self.numbered, len(self.numbered.cost)
        g = self.starts.index(t)
        space = float(self.budget - numbered.graph.constant_bytes)
        made_by = {k: [v for v in numbered.outputs[k] if self.heavy[v]] for k in range(t)}
        wanted = set(numbered.inputs[t] if t < n else numbered.results)
        stays: dict[int, int] = {}  # per value, the column of "read later or stays"; -1: never, -2: always
        readers: dict[int, list[int]] = {}
        for k in range(t):
            for v in made_by[k]:
                stays[v] = -2 if v in wanted else self.keep[g + 1, v] if t < n else -1
                for j in numbered.users[v]:
                    if j < t:
                        readers.setdefault(j, []).append(v)
        before: int | None = None
        change: dict[int, float] = {}
        fixed = 0.0

        def count(v: int, sign: float) -> None:
            nonlocal fixed
            if stays[v] == -2:
                fixed += sign * numbered.nbytes[v]
            elif stays[v] >= 0:
                change[stays[v]] = change.get(stays[v], 0.0) + sign * numbered.nbytes[v]

        def add(column: int, amount: float) -> None:
            change[column] = change.get(column, 0.0) + amount

        for v in stays:  # as if an op t that makes nothing were rematerialized
            count(v, 1.0)
        for k in range(t - 1, -1, -1):
            bytes_made = float(sum(numbered.nbytes[v] for v in made_by[k]))
            for v in made_by[k]:
                count(v, -1.0)
                add(self.keep[g, v], float(numbered.nbytes[v]))
            if (g, k) in self.again:
                add(self.again[g, k], bytes_made)
                for v in readers.get(k, ()):
                    if stays[v] == -2:
                        continue
                    d = self._column(0.0, False)
                    self._row([(d, 1.0), (self.again[g, k], -1.0)], 0.0, math.inf)
                    if stays[v] >= 0:
                        self._row([(d, 1.0), (stays[v], -1.0)], 0.0, math.inf)
                    count(v, -1.0)
                    stays[v] = d
                    count(v, 1.0)
            u = self._column(0.0, False)
            entries = [(column, -amount) for column, amount in change.items() if amount]
            entries.append((u, space))
            if before is not None:
                entries.append((before, -space))
            self._row(entries, fixed, fixed)
            before, fixed = u, 0.0
            change.clear()
            if (g, k) in self.again:
                add(self.again[g, k], -bytes_made)

    def solution_of(self, sequence: Sequence[int]) -> np.ndarray:
        """Return the values of S and R for a schedule; with one stage per group it is a solution."""
        numbered = self.numbered
        stages = stages_of(numbered, sequence)
        solution = np.zeros(len(self.cost))
        group_of = np.searchsorted(np.array(self.starts), np.arange(len(stages)), side="right") - 1
        for t, again in enumerate(stages):
            for i in again:
                column = self.again.get((int(group_of[t]), i))
                if column is not None:
                    solution[column] = 1.0
        for v, mine in enumerate(intervals_of(numbered, stages)):
            for first, last in mine:
                for g in range(int(group_of[first]) + 1, int(group_of[last]) + 1):
                    if (g, v) in self.keep:
                        solution[self.keep[g, v]] = 1.0
        return solution

    def sequence_of(self, solution: Sequence[float] | np.ndarray, threshold: float = 0.5) -> list[int]:
        """Return the cheapest sequence that keeps what the solution keeps; needs one stage per group."""
        n = len(self.numbered.cost)
        kept: list[set[int]] = [set() for _ in range(n + 1)]
        for v, made in enumerate(self.numbered.maker):
            if not self.heavy[v]:
                for t in range(made + 1, n + 1):
                    kept[t].add(v)
        for (g, v), column in self.keep.items():
            if solution[column] > threshold:
                kept[self.starts[g]].add(v)
        return sequence_of_kept(self.numbered, repaired(self.numbered, kept))


def repaired(numbered: NumberedGraph, kept: list[set[int]]) -> list[set[int]]:
    """Keep what must not run twice for as long as anything may still read it."""
    n = len(numbered.cost)
    for v, made in enumerate(numbered.maker):
        if not numbered.graph.ops[made].rematerializable:
            for t in range(made + 1, n + 1):
                kept[t].add(v)
    return kept


def all_stages(numbered: NumberedGraph) -> tuple[int, ...]:
    """One group per stage: Checkmate's own program."""
    return tuple(range(len(numbered.cost) + 1))
