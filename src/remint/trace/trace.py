"""Traces: what a program asked for, as a stream of events over numbered tensors.

A trace is what the engine replays. The events are those of `remint.trace.events`; a `Trace` keeps them as
columns (one array per field), which the engine reads in place, and `Trace.events` gives them back one by one.
`TraceBuilder` makes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from remint import _core
from remint.trace.events import (
    CALL,
    CONSTANT,
    FIX,
    FRESH,
    KEPT,
    MARK,
    MATERIALIZE,
    MUTATE,
    ONCE,
    OVERWRITES,
    PIN,
    RELEASE,
    SIDE_EFFECT,
    VIEW,
    WHERE,
    Call,
    Constant,
    Event,
    Mark,
    Materialize,
    Mutate,
    Pin,
    Release,
    Request,
    View,
)
from remint.units import format_seconds

Path: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Trace:
    """A stream of events, immutable. `TraceBuilder`, `Trace.load` and the generators make traces.

    >>> from remint import TraceBuilder
    >>> builder = TraceBuilder()
    >>> weight = builder.constant(4096)
    >>> (activation,) = builder.call("conv", [weight], [65536], seconds=0.0025)
    >>> builder.release(weight)
    >>> builder.build()
    <Trace: 3 events, 1 op in 2.5 ms, 2 tensors>

    The columns are read-only. Event e has the arguments `args[arg_offsets[e]:arg_offsets[e + 1]]`, the
    outputs `range(out_offsets[e], out_offsets[e + 1])`, and, in the two request columns, the memory requests
    `request_offsets[e]:request_offsets[e + 1]`; if there are none, its outputs are asked for in order.
    """

    kinds: npt.NDArray[np.uint8]
    """Per event: `CONSTANT`, `CALL`, `VIEW`, `MUTATE`, `RELEASE`, `MARK`, `PIN`, `FIX` or `MATERIALIZE`."""
    nanoseconds: npt.NDArray[np.int64]
    """Per event: the op's cost; 0 for what is not an op."""
    arg_offsets: npt.NDArray[np.int64]
    args: npt.NDArray[np.int32]
    """Arguments of ops; the tensor of a release, a pin or a materialization."""
    effects: npt.NDArray[np.uint8]
    """Per argument: 0, `SIDE_EFFECT` or `OVERWRITES` of `remint.trace.events`."""
    out_offsets: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]
    """Per tensor: its fresh bytes, 0 for a view; if it was made in place, the bytes of its storage."""
    aliases: npt.NDArray[np.int32]
    """Per tensor: the argument of its op whose storage it shares, or whose next value it is; or, if there is none,
    `FRESH`, `ONCE`, `KEPT` or `ELSEWHERE` of `remint.trace.events`, all negative."""
    name_ids: npt.NDArray[np.int32]
    """Per event: index into `names`; -1 for what has no name."""
    names: tuple[str, ...]
    source_ids: npt.NDArray[np.int32]
    """Per event: index into `sources` (the user's lines, such as "net.py:12"), or -1."""
    sources: tuple[str, ...]
    request_offsets: npt.NDArray[np.int64]
    request_bytes: npt.NDArray[np.int64]
    """Per request: bytes to allocate, or -(k + 1) to free the k-th allocation of the event."""
    request_outputs: npt.NDArray[np.int32]
    """Per request: the output of the event that these bytes become; -1 for scratch and for frees."""
    held: npt.NDArray[np.int32]
    """The tensors that the program holds at the end, in the order in which they are made resident there."""

    def __post_init__(self) -> None:
        for column in self.__dict__.values():
            if isinstance(column, np.ndarray):
                column.flags.writeable = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Unpickled arrays are writeable again.
        self.__dict__.update(state)
        self.__post_init__()

    def __getstate__(self) -> dict[str, Any]:
        # Leave out cached values.
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def num_events(self) -> int:
        """The number of events of any kind."""
        return len(self.kinds)

    @cached_property
    def num_ops(self) -> int:
        """The number of calls, views and mutations."""
        return int(np.count_nonzero((self.kinds >= CALL) & (self.kinds <= MUTATE)))

    @property
    def num_tensors(self) -> int:
        """The number of tensors ever made, constants included."""
        return len(self.nbytes)

    @cached_property
    def seconds(self) -> float:
        """The cost of all ops, each run once."""
        return int(self.nanoseconds.sum()) / 1e9

    @cached_property
    def _facts(self) -> _core.TraceFacts:
        return _core.trace_facts(self)

    @property
    def peak_bytes(self) -> int:
        """The most bytes ever live when a storage is freed as soon as its last tensor is released.

        Constants count, and are freed like the rest. An op in place counts as one that makes a fresh storage.
        """
        return self._facts.peak_bytes

    @property
    def min_budget_bytes(self) -> int:
        """A lower bound: no schedule of the same ops can do with less. It may take more.

        Each op needs its inputs and fresh outputs at once, beside the constants that the program holds.
        """
        return self._facts.min_budget_bytes

    @property
    def min_budget_event(self) -> int:
        """The event that needs `min_budget_bytes`."""
        return self._facts.min_budget_event

    @property
    def constant_bytes(self) -> int:
        """The bytes of all constants."""
        return self._facts.constant_bytes

    def seconds_by_name(self) -> dict[str, tuple[int, float]]:
        """Return, for each name of an op, how often it is called and what all the calls cost."""
        is_op = (self.kinds >= CALL) & (self.kinds <= MUTATE)
        ids = self.name_ids[is_op]
        counts = np.bincount(ids, minlength=len(self.names))
        totals = np.bincount(ids, weights=self.nanoseconds[is_op], minlength=len(self.names))
        return {
            name: (int(count), float(total) / 1e9)
            for name, count, total in zip(self.names, counts, totals, strict=True)
            if count
        }

    def events(self) -> Iterator[Event]:
        """Iterate over the events, as objects to look at.

        >>> from remint import TraceBuilder
        >>> builder = TraceBuilder()
        >>> weight = builder.constant(4096, name="weight")
        >>> builder.release(weight)
        >>> list(builder.build().events())
        [Constant(output=0, nbytes=4096, name='weight', where='arena'), Release(tensor=0)]
        """
        # One by one, the numbers of a list are many times faster to get at than those of an array.
        args, arg_offsets = self.args.tolist(), self.arg_offsets.tolist()
        nbytes, aliases, out_offsets = self.nbytes.tolist(), self.aliases.tolist(), self.out_offsets.tolist()
        has_requests = (np.diff(self.request_offsets) > 0).tolist()
        columns = self.kinds, self.nanoseconds, self.name_ids, self.source_ids
        effects = self.effects.tolist()
        where = {code: word for word, code in WHERE.items()}
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for event, (kind, nanoseconds, name_id, source_id) in enumerate(rows):
            begin, end = out_offsets[event], out_offsets[event + 1]
            if kind == RELEASE:
                yield Release(args[arg_offsets[event]])
            elif kind in (PIN, FIX):
                yield Pin(args[arg_offsets[event]], kind == FIX)
            elif kind == MATERIALIZE:
                yield Materialize(args[arg_offsets[event]])
            elif kind == CONSTANT:
                yield Constant(begin, nbytes[begin], self.names[name_id], where[aliases[begin]])
            elif kind == MARK:
                yield Mark(self.names[name_id])
            else:
                name, seconds = self.names[name_id], nanoseconds / 1e9
                source = self.sources[source_id] if source_id >= 0 else None
                requests = self._requests(event) if has_requests[event] else ()
                read = tuple(args[arg_offsets[event] : arg_offsets[event + 1]])
                outputs, marks = tuple(range(begin, end)), aliases[begin:end]
                shared = tuple(max(mark, FRESH) for mark in marks)
                once = tuple(place for place, mark in enumerate(marks) if mark == ONCE)
                kept = tuple(place for place, mark in enumerate(marks) if mark == KEPT)
                sizes = tuple(nbytes[begin:end])
                if kind == VIEW:
                    yield View(name, read, outputs, shared, seconds, source, requests)
                elif kind == CALL:
                    yield Call(name, read, outputs, sizes, shared, seconds, source, requests, once, kept)
                else:
                    done = effects[arg_offsets[event] : arg_offsets[event + 1]]
                    overwritten, side_effects = (
                        tuple(place for place, effect in enumerate(done) if effect == what)
                        for what in (OVERWRITES, SIDE_EFFECT)
                    )
                    mutated = tuple(mark for mark in shared if mark >= 0)
                    yield Mutate(
                        name, read, outputs, sizes, mutated, seconds, source, requests,
                        overwritten, side_effects, once, kept,
                    )  # fmt: skip

    def _requests(self, event: int) -> tuple[Request, ...]:
        here = slice(self.request_offsets[event], self.request_offsets[event + 1])
        requests: list[Request] = []
        for size, output in zip(self.request_bytes[here].tolist(), self.request_outputs[here].tolist(), strict=True):
            if size < 0:
                requests.append(("free", -size - 1))
            else:
                requests.append(("allocate", size) if output < 0 else ("allocate", size, output))
        return tuple(requests)

    def save(self, path: Path) -> None:
        """Write the trace as JSON lines (see `remint.trace.files`); compressed if `path` ends in `.gz`."""
        from remint.trace.files import write

        write(self, path)

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Read what `save` wrote; a `TraceError` names the line of a bad file."""
        from remint.trace.files import read

        return read(path)

    @classmethod
    def from_dtr_log(cls, path: Path, *, releases: bool = True) -> Trace:
        """Read a log in the format of DTR's authors, plain or `.gz`.

        Without `releases` no tensor is ever released; what is held at the end stays the same.
        """
        from remint.trace.dtr_logs import read

        return read(path, releases=releases)

    def __len__(self) -> int:
        return self.num_events

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        # Names and sources are numbered as they first appear, so equal traces have equal columns.
        return all(np.array_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        def count(number: int, noun: str) -> str:
            return f"{number:,} {noun}" + ("" if number == 1 else "s")

        return (
            f"<Trace: {count(self.num_events, 'event')}, {count(self.num_ops, 'op')} in "
            f"{format_seconds(self.seconds)}, {count(self.num_tensors, 'tensor')}>"
        )
