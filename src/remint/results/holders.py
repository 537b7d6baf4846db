"""What holds memory at the peak of a run: activations by module, gradients, temporaries, workspaces."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np

from remint.results.block_log import AWAY, BlockLog, Rectangle
from remint.results.run import split_source


class Holder(NamedTuple):
    """Bytes of one kind at the peak."""

    kind: str
    """`activations`, `gradients`, `temporaries`, `workspaces`, `pinned`; others are named by who knows them."""
    where: str
    """The module that made them, with a `*` for the number of a layer; or the line. Empty if there is none."""
    num_storages: int
    """How many storages they are in."""
    nbytes: int


def peak_holders(log: BlockLog, *, since: float = 0.0) -> tuple[Holder, ...]:
    """Return who holds memory when most is resident, from second `since` of the log on. The largest come first.

    >>> from remint import generators, simulate
    >>> run = simulate(generators.chain(4), budget="100%", memory="arena", blocks=True)
    >>> sum(holder.nbytes for holder in peak_holders(run.blocks)) == run.peak_bytes
    True
    """
    line = log.memory()
    resident = np.where(line.seconds >= since, line.resident, -1)
    if len(resident) == 0 or resident.max() < 0:
        return ()
    peak = float(line.seconds[int(np.argmax(resident))])
    backward = _BackwardPasses(log.marks())
    nbytes: Counter[tuple[str, str]] = Counter()
    count: Counter[tuple[str, str]] = Counter()
    for rectangle in log.rectangles():
        if rectangle.begin <= peak and (rectangle.end > peak or rectangle.ending == "end"):
            if rectangle.kind in AWAY:
                continue
            key = (backward.kind_of(rectangle), _where(log, rectangle))
            nbytes[key] += rectangle.nbytes
            count[key] += 1
    return tuple(Holder(*key, count[key], size) for key, size in nbytes.most_common())


def shortened(holders: tuple[Holder, ...], most: int) -> tuple[Holder, ...]:
    """Return at most `most` rows: the small ones of a kind become one."""
    if len(holders) <= most:
        return holders
    kept, rest = holders[: most - 1], holders[most - 1 :]
    small: dict[str, list[Holder]] = defaultdict(list)
    for holder in rest:
        small[holder.kind].append(holder)
    kind = next(iter(small)) if len(small) == 1 else "other"
    others = Holder(kind, f"{len(rest)} smaller ones", sum(h.num_storages for h in rest), sum(h.nbytes for h in rest))
    return (*kept, others)


class _BackwardPasses:
    """Tells by when a block was made, and how long it lived, what it is."""

    def __init__(self, marks: list[tuple[float, str]]) -> None:
        self._begins = [at for at, name in marks if name == "backward"]
        self._ends = [at for at, name in marks if name != "backward"]

    def kind_of(self, rectangle: Rectangle) -> str:
        if rectangle.kind == "scratch":
            return "workspaces"
        passed = bisect_right(self._begins, rectangle.begin)
        in_backward = passed > 0 and (passed > len(self._ends) or rectangle.begin < self._ends[passed - 1])
        if in_backward:
            end = self._ends[passed - 1] if passed <= len(self._ends) else float("inf")
            return "gradients" if rectangle.ending == "end" or rectangle.end > end else "temporaries"
        if rectangle.kind == "pinned":
            return "pinned"
        # Activations are what the next backward pass finds.
        if passed < len(self._begins) and (rectangle.ending == "end" or rectangle.end > self._begins[passed]):
            return "activations"
        return "temporaries"


def _where(log: BlockLog, rectangle: Rectangle) -> str:
    if rectangle.label < 0 or rectangle.storage < 0:
        return ""
    return where(log.labels[rectangle.label].source)


def where(source: str) -> str:
    """Return the module that a source names, with a `*` for the number of a layer; or its line.

    >>> where("backward of GPT.blocks.3.mlp at net.py:12"), where("src/net.py:12")
    ('GPT.blocks.*.mlp', 'src/net.py:12')
    """
    module, line = split_source(source.removeprefix("backward of "))
    if module:
        # Layers of a stack are one row.
        return re.sub(r"\.\d+(?=\.|$)", ".*", module)
    return "/".join(line.split("/")[-2:])
