"""The log of every block of an arena, and the rectangles (address against time) that it draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Kind = Literal["pinned", "first", "again", "fetched", "scratch", "evicted", "offloaded"]
Ending = Literal[
    "evicted",
    "offloaded",
    "released",
    "dropped",
    "overwritten",
    "moved",
    "pinned",
    "freed",
    "rematerialized",
    "fetched",
    "end",
]
AWAY: tuple[Kind, ...] = ("evicted", "offloaded")
"""The kinds of rectangles that are not in memory."""

# The changes as the engine writes them (csrc/engine).
TAKEN, FREED, MADE, PINNED, EVICTED, OFFLOADED, FETCHED, RELEASED, DROPPED, GHOST, MOVED, MARK = "AFCPEOBLDGMK"
_ENDINGS: dict[str, Ending] = {EVICTED: "evicted", RELEASED: "released", DROPPED: "dropped", GHOST: "overwritten"}


class Label(NamedTuple):
    """The op that made the bytes of a block, and the user's line, if it is known."""

    name: str
    source: str = ""


class Rectangle(NamedTuple):
    """One storage at one place, from one moment to another."""

    begin: float
    end: float
    address: int
    nbytes: int
    kind: Kind
    """`pinned`: never evicted; `first`: made by the program's op; `again`: rematerialized; `fetched`: back from the
    tier; `scratch`: of one op. Not there, at the address where it was last: `evicted`, though still needed;
    `offloaded`, in the tier."""
    ending: Ending
    label: int
    """Index into the log's labels; -1 for scratch."""
    storage: int
    """The same number for all places of one storage; -1 for scratch."""


# The columns of the engine: seconds, changes, storages, tags (tensors; numbers for marks), addresses, bytes.
Columns: TypeAlias = tuple[
    npt.NDArray[np.float64],
    str,
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
]


class MemoryLine(NamedTuple):
    """Bytes over time, one point per change."""

    seconds: npt.NDArray[np.float64]
    resident: npt.NDArray[np.int64]
    pinned: npt.NDArray[np.int64]
    evicted: npt.NDArray[np.int64]
    """Evicted, and still needed."""
    offloaded: npt.NDArray[np.int64]
    """In the tier, and not in memory."""


class Transfer(NamedTuple):
    """A storage that left for the tier, or came back."""

    seconds: float
    """When it was over."""
    leaves: bool
    nbytes: int
    was_pinned: bool
    """It cannot be recomputed."""
    label: int
    """Index into the log's labels."""


@dataclass(frozen=True, eq=False)
class BlockLog:
    """The changes of an arena's blocks in order, as columns; `blocks=True` keeps one.

    >>> from remint import generators, simulate
    >>> run = simulate(generators.chain(16), budget="50%", memory="arena", blocks=True)
    >>> rectangles = run.blocks.rectangles()
    >>> sorted({r.kind for r in rectangles}), max(r.address + r.nbytes for r in rectangles) <= run.budget_bytes
    (['again', 'evicted', 'first', 'pinned'], True)
    """

    seconds: npt.NDArray[np.float64]
    changes: str
    """One letter each: `A` taken by the op that runs, `F` freed, `C` made, `P` pinned, `E` evicted, `O`
    offloaded, `B` fetched, `L` released by the program, `D` dropped for good, `G` overwritten in place, `M` moved, `K`
    a mark of the program."""
    storages: npt.NDArray[np.int64]
    """The engine's slot, which is used again after a `D`; -1 where there is none."""
    label_ids: npt.NDArray[np.int64]
    addresses: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]
    labels: tuple[Label, ...]

    @classmethod
    def labelled(
        cls, columns: Columns, makers: npt.NDArray[np.int64], marks: Callable[[int], str], label: Callable[[int], Label]
    ) -> BlockLog:
        """Make a log of the engine's columns.

        `makers` has the begin of each maker's tags, in order; `label` and `marks` name a maker and the tag of a mark.
        """
        seconds, changes, storages, tags, addresses, nbytes = columns
        is_mark = np.frombuffer(changes.encode(), dtype=np.uint8) == ord(MARK)
        made_by = np.searchsorted(makers, tags, side="right") - 1
        # Marks are numbered after all makers; scratch has no maker.
        owners = np.where(is_mark, len(makers) + tags, np.where(storages < 0, -1, made_by))
        used, label_ids = np.unique(owners, return_inverse=True)
        labels = tuple(
            Label("scratch") if k < 0 else label(k) if k < len(makers) else Label(marks(k - len(makers)))
            for k in used.tolist()
        )
        return cls(seconds, changes, storages, label_ids.astype(np.int64), addresses, nbytes, labels)

    def __len__(self) -> int:
        return len(self.changes)

    def marks(self) -> list[tuple[float, str]]:
        """Return the named points of the program, such as the begin of the backward pass."""
        return [(now, self.labels[label].name) for change, now, _, label, _, _ in self._rows() if change == MARK]

    def rectangles(self) -> list[Rectangle]:
        """Return where every block was and when, in the order in which they ended."""
        return _walked(self._rows()).done

    def memory(self) -> MemoryLine:
        """Return how many bytes were resident, pinned and evicted, over time."""
        rectangles = self.rectangles()
        times = np.array([t for r in rectangles for t in (r.begin, r.end)])
        # Blocks that are still there at the end stay.
        ends = [0 if r.ending == "end" else -r.nbytes for r in rectangles]
        steps = np.array([b for r, end in zip(rectangles, ends, strict=True) for b in (r.nbytes, end)], dtype=np.int64)
        kinds = np.repeat(np.array([r.kind for r in rectangles], dtype=object), 2)
        # At the same moment, ends come before begins.
        order = np.lexsort((steps, times))

        def line(counts: Any) -> npt.NDArray[np.int64]:
            return np.cumsum(np.where(counts, steps, 0)[order])

        away = {kind: kinds == kind for kind in AWAY}
        resident = line(~(away["evicted"] | away["offloaded"]))
        return MemoryLine(
            times[order], resident, line(kinds == "pinned"), line(away["evicted"]), line(away["offloaded"])
        )

    def transfers(self) -> list[Transfer]:
        """Return what left for the tier, and what came back, in order."""
        return _walked(self._rows()).transfers

    def _rows(self) -> Iterator[tuple[str, float, int, int, int, int]]:
        columns = (_spread(self.seconds), self.storages, self.label_ids, self.addresses, self.nbytes)
        # Reading numbers one by one is many times faster from a list than from an array.
        return zip(self.changes, *(column.tolist() for column in columns), strict=True)

    def to_json(self) -> dict[str, Any]:
        """Return the log as plain data."""
        names = ("seconds", "storages", "label_ids", "addresses", "nbytes")
        columns = {name: getattr(self, name).tolist() for name in names}
        return {"changes": self.changes, **columns, "labels": [list(label) for label in self.labels]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BlockLog:
        """Make a log of what `to_json` returned."""
        names = ("storages", "label_ids", "addresses", "nbytes")
        whole = {name: np.array(data[name], dtype=np.int64) for name in names}
        labels = tuple(Label(*label) for label in data["labels"])
        return cls(np.array(data["seconds"], dtype=np.float64), data["changes"], labels=labels, **whole)


def _walked(rows: Iterator[tuple[str, float, int, int, int, int]]) -> _Walk:
    walk = _Walk()
    now = 0.0
    for change, now, slot, label, address, nbytes in rows:
        walk.step(change, now, slot, label, address, nbytes)
    walk.end(now)
    return walk


class _Walk:
    """Follows the changes and collects rectangles as they end."""

    def __init__(self) -> None:
        self.done: list[Rectangle] = []
        self.transfers: list[Transfer] = []
        self.placed: dict[int, Rectangle] = {}  # by slot: where it is, with an end that is not known yet
        self.away: dict[int, Rectangle] = {}  # by slot: evicted and needed again, or offloaded
        self._running: dict[int, tuple[float, int]] = {}  # by address: since when, and bytes
        self._numbers: dict[int, int] = {}  # by slot
        self._count = 0
        self._pinned: set[int] = set()
        self._released: set[int] = set()  # rematerialized, if at all, on the way to something else
        self._just_made = -1  # constants are pinned as they are made

    def step(self, change: str, now: float, slot: int, label: int, address: int, nbytes: int) -> None:
        if change == TAKEN:
            self._running[address] = (now, nbytes)
        elif change == FREED:
            begin, taken = self._running.pop(address, (now, nbytes))
            self.done.append(Rectangle(begin, now, address, taken, "scratch", "freed", -1, -1))
        elif change == MADE:
            self._made(now, slot, label, address, nbytes)
        elif change == OFFLOADED:
            self._offloaded(now, slot)
        elif change == FETCHED:
            self._fetched(now, slot, label, address, nbytes)
        elif change == PINNED:
            self._pinned.add(slot)
            placed = self.placed.get(slot)
            if placed is not None and placed.kind != "pinned":
                if slot != self._just_made:
                    self.finish(slot, now, "pinned")
                    placed = placed._replace(begin=now)
                self.placed[slot] = placed._replace(kind="pinned")
        elif change == MOVED and slot in self.placed:
            placed = self.placed[slot]
            self.finish(slot, now, "moved")
            self.placed[slot] = placed._replace(begin=now, address=address)
        elif change in _ENDINGS:
            self._ended(change, now, slot)
        self._just_made = slot if change == MADE else -1

    def end(self, now: float) -> None:
        for slot in list(self.placed):
            self.finish(slot, now, "end")
        for slot in list(self.away):
            self.come_back(slot, now, "end")
        # Bytes that a program took outside of any op, and still has.
        for address, (begin, nbytes) in self._running.items():
            self.done.append(Rectangle(begin, now, address, nbytes, "scratch", "end", -1, -1))

    def finish(self, slot: int, now: float, ending: Ending) -> Rectangle | None:
        placed = self.placed.pop(slot, None)
        if placed is not None:
            self.done.append(placed._replace(end=now, ending=ending))
        return placed

    def come_back(self, slot: int, now: float, ending: Ending) -> None:
        gone = self.away.pop(slot, None)
        if gone is not None:
            self.done.append(gone._replace(end=now, ending=ending))

    def _made(self, now: float, slot: int, label: int, address: int, nbytes: int) -> None:
        again = slot in self._numbers
        if not again:
            self._numbers[slot] = self._count
            self._count += 1
        self.come_back(slot, now, "rematerialized")
        begin, taken = self._running.pop(address, (now, nbytes))
        if nbytes:
            kind: Kind = "pinned" if slot in self._pinned else "again" if again else "first"
            self.placed[slot] = Rectangle(begin, now, address, taken, kind, "end", label, self._numbers[slot])

    def _offloaded(self, now: float, slot: int) -> None:
        placed = self.finish(slot, now, "offloaded")
        if placed is not None:
            self.away[slot] = placed._replace(begin=now, kind="offloaded")
            self.transfers.append(Transfer(now, True, placed.nbytes, slot in self._pinned, placed.label))

    def _fetched(self, now: float, slot: int, label: int, address: int, nbytes: int) -> None:
        self.come_back(slot, now, "fetched")
        begin, taken = self._running.pop(address, (now, nbytes))
        kind: Kind = "pinned" if slot in self._pinned else "fetched"
        self.placed[slot] = Rectangle(begin, now, address, taken, kind, "end", label, self._numbers[slot])
        self.transfers.append(Transfer(now, False, taken, slot in self._pinned, label))

    def _ended(self, change: str, now: float, slot: int) -> None:
        placed = self.finish(slot, now, _ENDINGS[change])
        if change == EVICTED and placed is None:
            # Its copy in the tier was dropped.
            placed = self.away.get(slot)
            self.come_back(slot, now, "dropped")
        self._pinned.discard(slot)
        if change == EVICTED and placed is not None and slot not in self._released:
            self.away[slot] = placed._replace(begin=now, kind="evicted")
        if change == RELEASED:
            self._released.add(slot)
            self.come_back(slot, now, "released")
        if change == DROPPED:
            self._released.discard(slot)
            self.come_back(slot, now, "dropped")
            self._numbers.pop(slot, None)


def _spread(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Spread changes of the same time over the time to the next: the clock stands still while an op runs."""
    if len(seconds) == 0:
        return seconds
    moments, first, counts = np.unique(seconds, return_index=True, return_counts=True)
    # The last moment gets as much as the mean one.
    until = np.append(moments[1:], moments[-1] * (1 + 1 / len(moments)))
    place = np.arange(len(seconds)) - np.repeat(first, counts)
    spread: npt.NDArray[np.float64] = seconds + place * np.repeat((until - moments) / counts, counts)
    return spread
