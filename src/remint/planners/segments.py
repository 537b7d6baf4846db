"""Make a schedule cheaper a segment at a time, by exact searches of what lies between two of its runs.

Where the search for the cheapest schedule of all does not end (watching.py), a search for the cheapest way from what is
there at one run to what is wanted at a later one often does (csrc/planner/segment_search.h). So segments of a schedule
are looked at one after the other, from its end to its beginning, each overlapping the last: short ones first, longer
ones when no short one can be made cheaper. This is large neighbourhood search (Shaw, 1998) with an exact search inside.

The searches are measured in states, not in seconds: the same question has the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from remint._core import SegmentSearch
from remint.planners.contract import Task
from remint.planners.watching import MOST_OPS, MOST_WATCHED, Bundled

# Runs in a segment, and states that the search of one may look into: 1.2 KB each, with those it enters.
SIZES = ((20, 5_000), (40, 10_000), (60, 20_000), (90, 50_000), (130, 100_000), (200, 200_000))
STEPS = 4  # segments that a run is in
CHEAPER = 1e-9  # in parts of the cost: what counts as cheaper


@dataclass(frozen=True)
class Shortened:
    """What the search of one segment gave: a cheaper schedule, or None, and the states it looked into."""

    sequence: tuple[int, ...] | None
    states: int


class Segments:
    """The segments of a schedule, in turn."""

    def __init__(self, task: Task) -> None:
        bundled = Bundled.of(task.numbered)
        self._task = task
        self._cost_of = task.numbered.cost
        self._search: SegmentSearch | None = None
        if len(self._cost_of) <= MOST_OPS and sum(nbytes > 0 for nbytes in bundled.nbytes) <= MOST_WATCHED:
            self._search = SegmentSearch(bundled.native, float(task.budget))
        self._cost = math.inf
        self._sequence: list[int] = []
        self._size = self._end = 0
        self._shorter = False  # whether a segment was made cheaper since all were looked at

    def begin(self, sequence: Sequence[int]) -> None:
        """Look at the segments of `sequence` from now on, unless that at work costs no more."""
        cost = math.fsum(map(self._cost_of.__getitem__, sequence))
        if cost < self._cost * (1 - CHEAPER):
            self._use(sequence, cost)
            self._size, self._end = 0, len(sequence)

    def look_at_next(self) -> Shortened | None:
        """Search the next segment; return None when no segment can be made cheaper."""
        if self._end <= 0:
            self._size, self._end = 0 if self._shorter else self._size + 1, len(self._sequence)
            self._shorter = False
        if self._search is None or self._size >= len(SIZES) or not self._sequence:
            return None
        length, states = SIZES[self._size]
        before = self._search.looked_into
        begin = max(0, self._end - length)
        found = self._search.improve(self._sequence, begin, self._end, states, self._task.left())
        looked_into = self._search.looked_into - before
        if not found:
            self._end -= length // STEPS
            return Shortened(None, looked_into)
        self._use(found, math.fsum(map(self._cost_of.__getitem__, found)))
        self._end = min(self._end + length // STEPS, len(found))
        self._shorter = True
        return Shortened(tuple(found), looked_into)

    def _use(self, sequence: Sequence[int], cost: float) -> None:
        self._sequence, self._cost = list(sequence), cost
