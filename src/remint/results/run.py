"""Run: the result of executing or simulating under a budget."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from remint.file_format import check_format
from remint.notebook import as_html
from remint.results.block_log import BlockLog
from remint.results.learning import Learning
from remint.results.verdict import verdict
from remint.units import format_bytes, format_seconds

VERSION = 1

Status = Literal["ok", "oom", "thrash"]

_LONG = ("timeline", "events", "blocks", "rematerialized", "learning")


class Timeline(NamedTuple):
    """Bytes in use after each op, over the seconds that ops took."""

    seconds: npt.NDArray[np.float64]
    nbytes: npt.NDArray[np.int64]


class RematerializedOp(NamedTuple):
    """One op of the program that was rematerialized: how often, and which ops needed it."""

    name: str
    source: str
    """The user's line, if it is known, after the module: `GPT.blocks.3.mlp at net.py:12`."""
    times: int
    seconds: float
    why: str
    """The ops that needed it, those that did most often first."""


class Rematerialized(NamedTuple):
    """One operator that was rematerialized: how often, and which ops needed it."""

    name: str
    times: int
    seconds: float
    source: str | None
    """The line of the program, if it is known."""
    module: str | None
    """The path of the module whose `forward` that line is called in: `GPT.blocks.3.mlp`."""
    why: str
    """The ops that needed it, those that did most often first."""


def split_source(source: str) -> tuple[str, str]:
    """Return the module and the line that a source names; either can be empty.

    >>> split_source("GPT.blocks.3.mlp at net.py:12"), split_source("net.py:12")
    (('GPT.blocks.3.mlp', 'net.py:12'), ('', 'net.py:12'))
    """
    module, at, line = source.partition(" at ")
    # A module has no slash in its path; the folder of a line can have an " at ".
    return (module, line) if at and "/" not in module else ("", source)


def tier_figures(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of the tier by the names of `Run`, from those of an engine."""
    return {
        "num_offloads": figures["num_offloads"],
        "num_clean_offloads": figures["num_clean_offloads"],
        "num_fetches": figures["num_fetches"],
        "offloaded_bytes": figures["offloaded_bytes"],
        "fetched_bytes": figures["fetched_bytes"],
        "transfer_seconds": figures["transfer_ns"] * 1e-9,
        "offload_peak_bytes": figures["tier_peak_bytes"],
    }


@dataclass(frozen=True, kw_only=True)
class Run:
    """The result of one run: did it fit, what did it cost, what was done for it.

    Two runs are equal if their figures are, whatever time searches and collectives took.
    """

    status: Status
    """`ok`; `oom`: something did not fit; `thrash`: rematerialization took more than was allowed."""
    policy: str
    memory: str
    deallocation: str
    budget_bytes: int
    min_budget_bytes: int
    """A lower bound: no run of the same ops can do with less, because this much is needed at once. It may take more."""
    peak_bytes: int
    pinned_bytes: int
    """Bytes that could not be evicted at the end."""
    num_ops: int
    num_evictions: int
    """Times that bytes were dropped to free up space, or because somebody asked for it (`remint.evict`)."""
    num_frees: int = 0
    """Times that bytes were dropped because the program had released them."""
    num_rematerializations: int
    num_searches: int
    """Times that the policy was asked for something to evict."""
    num_scores: int
    """Candidates that the policy scored in those searches."""
    computed_seconds: float
    """The time of the program's own ops."""
    rematerialized_seconds: float
    search_seconds: float
    """Real time spent in searches."""
    moved_bytes: int
    """Arena: bytes that were moved together because no free block was large enough."""
    fragmentation: float
    """Arena: free bytes that could not serve the request at hand, over the budget; the mean over searches."""
    collective_seconds: float = 0.0
    """Real time in collectives and in waits for them: mostly for other ranks. It is in no op's cost."""
    num_offloads: int = 0
    """Times that a tensor was copied to the tier below; see `remint.Offload`."""
    num_clean_offloads: int = 0
    """Times that a tensor left memory, and an unchanged copy was in the tier already."""
    num_fetches: int = 0
    """Times that a tensor came back from the tier."""
    offloaded_bytes: int = 0
    """Bytes that were copied to the tier."""
    fetched_bytes: int = 0
    """Bytes that came back."""
    transfer_seconds: float = 0.0
    """The time of these transfers, by the tier's bandwidth."""
    offload_peak_bytes: int = 0
    """The most bytes that the tier ever held."""
    failure: str | None = None
    """Where and why a run failed; None if it is `ok`."""
    timeline: Timeline | None = None
    events: tuple[str, ...] | None = None
    """`C3`: the op that made tensor 3 ran, `R3`: tensor 3 was rematerialized, `E3`: its storage was dropped, `O3` and
    `F3`: it went to the tier, and came back."""
    blocks: BlockLog | None = None
    """Arena: the log of every block, if it was asked for."""
    rematerialized: tuple[RematerializedOp, ...] = ()
    """The rematerialized ops, the most expensive first, if they were asked for."""
    learning: Learning | None = None
    """What a real run learned of the program's steps; None for simulations."""

    @property
    def slowdown(self) -> float:
        """The time with rematerialization and transfers over the time without."""
        if self.computed_seconds == 0:
            return 1.0
        return 1 + (self.rematerialized_seconds + self.transfer_seconds) / self.computed_seconds

    @property
    def wanted_bytes(self) -> int | None:
        """The most bytes that it would have had at once without a budget, if the run has a log of blocks, else None."""
        if self.blocks is None or len(self.blocks) == 0:
            return None
        line = self.blocks.memory()
        return int((line.resident + line.evicted + line.offloaded).max())

    def by_op(self) -> list[Rematerialized]:
        """Return which operators were rematerialized, the most expensive first, by line and module where known.

        A simulation knows them with `events=True`.

        >>> from remint import generators, simulate
        >>> [(row.name, row.times) for row in simulate(generators.chain(8), budget="60%", events=True).by_op()]
        [('forward', 5)]
        """
        if self.num_rematerializations > 0 and not self.rematerialized:
            raise ValueError("this run has no events: simulate it with events=True")
        merged: dict[tuple[str, str], list[RematerializedOp]] = {}
        for row in self.rematerialized:
            merged.setdefault((row.name, row.source), []).append(row)
        rows = [
            Rematerialized(
                name,
                sum(row.times for row in each),
                sum(row.seconds for row in each),
                split_source(source)[1] or None,
                split_source(source)[0] or None,
                max(each, key=lambda row: row.times).why,
            )
            for (name, source), each in merged.items()
        ]
        return sorted(rows, key=lambda row: -row.seconds)

    @property
    def decision_sha256(self) -> str:
        """One number for all decisions of the run; needs `events=True`."""
        if self.events is None:
            raise ValueError("this run has no events: simulate it with events=True")
        return hashlib.sha256("".join(f"{event};" for event in self.events).encode()).hexdigest()

    def summary(self) -> dict[str, Any]:
        """Return the plain figures by name, for a table or a file."""
        names = [f.name for f in fields(self) if f.name not in _LONG]
        return {name: getattr(self, name) for name in names} | {"slowdown": self.slowdown}

    def to_json(self) -> dict[str, Any]:
        """Return the run as plain data."""
        data = {"format": "remint.run", "version": VERSION, **self.summary()}
        del data["slowdown"]
        if self.timeline is not None:
            data["timeline"] = [column.tolist() for column in self.timeline]
        if self.events is not None:
            data["events"] = list(self.events)
        if self.blocks is not None:
            data["blocks"] = self.blocks.to_json()
        if self.learning is not None:
            data["learning"] = self.learning.to_json()
        return data | {"rematerialized": [list(row) for row in self.rematerialized]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Run:
        """Make a run of what `to_json` returned."""
        check_format(data, "remint.run", VERSION)
        figures = {f.name: data[f.name] for f in fields(cls) if f.name in data and f.name not in _LONG}
        if "timeline" in data:
            seconds, nbytes = data["timeline"]
            figures["timeline"] = Timeline(np.array(seconds, dtype=np.float64), np.array(nbytes, dtype=np.int64))
        if "events" in data:
            figures["events"] = tuple(data["events"])
        if "blocks" in data:
            figures["blocks"] = BlockLog.from_json(data["blocks"])
        if "learning" in data:
            figures["learning"] = Learning.from_json(data["learning"])
        return cls(**figures, rematerialized=tuple(RematerializedOp(*row) for row in data["rematerialized"]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run to a JSON file."""
        Path(path).write_text(json.dumps(self.to_json()))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Run:
        """Read a run from a JSON file."""
        return cls.from_json(json.loads(Path(path).read_text()))

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write a page about the run: one HTML file, which works offline."""
        from remint.report import write_html

        write_html(path, [self])

    def _repr_html_(self) -> str:
        rows: list[tuple[str, str]] = [
            ("peak", f"{format_bytes(self.peak_bytes)} of {format_bytes(self.budget_bytes)}"),
            ("cannot be evicted", format_bytes(self.pinned_bytes)),
            ("recomputed", f"{self.num_rematerializations:,} ops, {format_seconds(self.rematerialized_seconds)}"),
            ("computed", f"{self.num_ops:,} ops, {format_seconds(self.computed_seconds)}"),
            ("policy", f"{self.policy}, {self.memory} memory"),
        ]
        most = sorted(self.rematerialized, key=lambda row: -row.seconds)[:3]
        rows += [
            ("recomputed most", f"{row.times:,}× {row.name}, {format_seconds(row.seconds)} {row.source}")
            for row in most
        ]
        return as_html(verdict(self.summary(), wanted_bytes=self.wanted_bytes), [], rows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Run):
            return NotImplemented
        mine, others = self.summary(), other.summary()
        for figures in (mine, others):
            del figures["search_seconds"], figures["collective_seconds"]
        return mine == others and self.events == other.events

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        lines = [
            f"{self.policy} on {self.memory} memory: {self.status}",
            f"  peak          {format_bytes(self.peak_bytes)} of {format_bytes(self.budget_bytes)}"
            f" (pinned {format_bytes(self.pinned_bytes)})",
            f"  slowdown      {self.slowdown:.3f}x ({format_seconds(self.rematerialized_seconds)} rematerialized"
            f" on {format_seconds(self.computed_seconds)})",
            f"  evictions     {self.num_evictions:,} for {self.num_ops:,} ops, {self.num_frees:,} frees,"
            f" {self.num_rematerializations:,} rematerializations",
            f"  searches      {self.num_searches:,} in {format_seconds(self.search_seconds)},"
            f" {self.num_scores:,} scores",
        ]
        if self.memory == "arena":
            lines.append(f"  fragmentation {self.fragmentation:.1%}, {format_bytes(self.moved_bytes)} moved")
        if self.num_offloads:
            lines.append(
                f"  offloaded     {self.num_offloads:,}x {format_bytes(self.offloaded_bytes)}, fetched"
                f" {self.num_fetches:,}x {format_bytes(self.fetched_bytes)} in {format_seconds(self.transfer_seconds)}"
            )
        if self.failure is not None:
            lines.append(f"  failed        {self.failure}")
        return "\n".join(lines)
