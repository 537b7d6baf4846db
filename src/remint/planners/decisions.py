"""Schedules in the three forms planners use, and how one becomes another.

- a *sequence*: the ops to run, in order; - *kept* sets (Checkmate's S): per stage, the values that are
resident when it begins; - *decisions*: what the native search changes, sparse (see csrc/search_state.h). A
drop `(True, v, t)` lets value v go before stage t; a force `(False, i, t)` runs op i again in stage t
although nothing there needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from remint._core import Search
from remint.graph.numbered import NumberedGraph

Decision = tuple[bool, int, int]


def sequence_of_kept(numbered: NumberedGraph, kept: Sequence[frozenset[int] | set[int]]) -> list[int]:
    """Return the cheapest sequence that has `kept[t]` resident when stage t begins (Checkmate's R for a given
    S).

    `kept` has one set per op and one for the end.
    """
    sequence: list[int] = []
    n = len(numbered.cost)
    resident: set[int] = set()
    for t in range(n + 1):
        wanted = [v for v in (numbered.inputs[t] if t < n else numbered.results) if v not in resident]
        after = kept[t + 1] if t < n else frozenset(numbered.results)
        wanted += [v for v in after if v not in resident and numbered.maker[v] < t]
        again = closure(numbered, wanted, resident)
        sequence += again
        if t < n:
            sequence.append(t)
        made = {v for i in (*again, t) if i < n for v in numbered.outputs[i]}
        resident = {v for v in after if v in resident or v in made}
    return sequence


def closure(numbered: NumberedGraph, wanted: Iterable[int], resident: set[int] | frozenset[int]) -> list[int]:
    """Return the ops that must run, in the graph's order, to have `wanted` if `resident` is there."""
    ops: set[int] = set()
    stack = [numbered.maker[v] for v in wanted]
    while stack:
        i = stack.pop()
        if i not in ops:
            ops.add(i)
            stack += [numbered.maker[v] for v in numbered.inputs[i] if v not in resident]
    return sorted(ops)


def sequence_of_decisions(numbered: NumberedGraph, decisions: list[Decision]) -> list[int]:
    """Return the sequence that decisions stand for."""
    search = Search(numbered.native, 0.0, 0, [])
    search.start(decisions)
    return search.sequence


def stages_of(numbered: NumberedGraph, sequence: Sequence[int]) -> list[list[int]]:
    """Return per stage the ops it rematerializes; the last stage is the end of the step."""
    stages: list[list[int]] = [[]]
    for i in sequence:
        if i == len(stages) - 1:
            stages.append([])
        else:
            stages[-1].append(i)
    return stages


def intervals_of(numbered: NumberedGraph, stages: Sequence[Sequence[int]]) -> list[list[tuple[int, int]]]:
    """Return per value when it is resident: pairs of the stage that makes it and that which reads it last."""
    n = len(numbered.cost)
    runs: list[list[int]] = [[] for _ in range(n)]
    uses: list[list[int]] = [[] for _ in numbered.values]
    for t, again in enumerate(stages):
        for i in (*again, t):
            if i < n:
                runs[i].append(t)
                for v in numbered.inputs[i]:
                    uses[v].append(t)
    for v in numbered.results:
        uses[v].append(n)
    intervals: list[list[tuple[int, int]]] = []
    for v, made in enumerate(numbered.maker):
        mine, at = [], 0
        for r, first in enumerate(runs[made]):
            end = runs[made][r + 1] if r + 1 < len(runs[made]) else n + 1
            last = first
            while at < len(uses[v]) and uses[v][at] < end:
                last = max(last, uses[v][at])
                at += 1
            mine.append((first, last))
        intervals.append(mine)
    return intervals


def decisions_of_sequence(numbered: NumberedGraph, sequence: Sequence[int]) -> list[Decision]:
    """Return decisions that stand for `sequence`; it must be of the schedule class."""
    stages = stages_of(numbered, sequence)
    decisions: list[Decision] = []
    intervals = intervals_of(numbered, stages)
    starts: list[list[int]] = [[] for _ in range(len(stages) + 1)]
    ends: list[list[int]] = [[] for _ in range(len(stages) + 1)]
    for v, mine in enumerate(intervals):
        for (_, last), (next_first, _) in pairwise(mine):
            decisions.append((True, v, min(last + 1, next_first)))
        for first, last in mine:
            if last > first:
                starts[first + 1].append(v)
                ends[last + 1].append(v)
    resident: set[int] = set()
    for t, again in enumerate(stages):
        resident.difference_update(ends[t])
        resident.update(starts[t])
        wanted = numbered.inputs[t] if t < len(numbered.cost) else numbered.results
        asked = set(closure(numbered, [v for v in wanted if v not in resident], resident))
        decisions += [(False, i, t) for i in again if i not in asked]
    return decisions


def is_staged(sequence: Sequence[int]) -> bool:
    """Whether a sequence is of the schedule class: first runs in order, each stage ascending."""
    frontier, last = 0, -1
    for i in sequence:
        if i == frontier:
            frontier, last = frontier + 1, -1
        elif i > frontier or i <= last:
            return False
        else:
            last = i
    return True


def staged(sequence: Sequence[int]) -> list[int]:
    """Return the sequence of the class that runs the same ops in each stage, in the graph's order."""
    if is_staged(sequence):
        return list(sequence)
    result: list[int] = []
    stage: set[int] = set()
    frontier = 0
    for i in sequence:
        if i == frontier:
            result += (*sorted(stage), i)
            stage.clear()
            frontier += 1
        else:
            stage.add(i)
    return result + sorted(stage)


def drop_unless(numbered: NumberedGraph, kept: Iterable[int]) -> list[Decision]:
    """Return decisions that let forward values go after their last forward use, `kept` apart."""
    keep = set(kept)
    decisions = []
    for v, users in enumerate(numbered.users):
        made = numbered.maker[v]
        if made < numbered.turn and v not in keep and users and users[-1] >= numbered.turn:
            last = max([made, *(u for u in users if u < numbered.turn)])
            decisions.append((True, v, last + 1))
    return decisions
