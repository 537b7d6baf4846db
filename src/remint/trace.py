"""Traces: what a program asked for, as a stream of events over numbered tensors.

A trace is what the engine replays. The events are those of `remint.trace_events`; a `Trace` keeps them as
columns (one array per field), which the engine reads in place, and `Trace.events` gives them back one by one.
`TraceBuilder` is the one way to make a trace, so every `Trace` is legal.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from remint import _core
from remint.errors import TraceError
from remint.trace_events import (
    CALL,
    CONSTANT,
    FIX,
    FRESH,
    KEPT,
    KINDS,
    MARK,
    MATERIALIZE,
    MAX_INT64,
    MUTATE,
    ONCE,
    OVERWRITES,
    PIN,
    READS,
    RELEASE,
    SIDE_EFFECT,
    VIEW,
    WHERE,
    Call,
    Constant,
    Event,
    Integers,
    Mark,
    Materialize,
    Mutate,
    Pin,
    Release,
    Request,
    View,
    Where,
    check_aliases,
    check_args,
    check_bytes,
    check_integer,
    check_list,
    check_mutated,
    check_places,
    check_requests,
    check_seconds,
    mark_outputs,
)
from remint.units import format_seconds

__all__ = [
    "CALL",
    "CONSTANT",
    "FIX",
    "MARK",
    "MATERIALIZE",
    "MUTATE",
    "PIN",
    "RELEASE",
    "VIEW",
    "Call",
    "Constant",
    "Event",
    "Mark",
    "Materialize",
    "Mutate",
    "Pin",
    "Release",
    "Request",
    "Trace",
    "TraceBuilder",
    "View",
]

Path: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Trace:
    """A stream of events, immutable. `TraceBuilder`, `Trace.load` and the generators make traces.

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
    """Per argument: 0, `SIDE_EFFECT` or `OVERWRITES` of `remint.trace_events`."""
    out_offsets: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]
    """Per tensor: its fresh bytes, 0 for a view; if it was made in place, the bytes of its storage."""
    aliases: npt.NDArray[np.int32]
    """Per tensor: the argument of its op whose storage it shares, or whose next value it is; or, if there is none,
    `FRESH`, `ONCE`, `KEPT` or `ELSEWHERE` of `remint.trace_events`, all negative."""
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
    """What the program holds at the end, in the order in which it is made resident there."""

    def __post_init__(self) -> None:
        for column in self.__dict__.values():
            if isinstance(column, np.ndarray):
                column.flags.writeable = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Unpickled arrays are writeable again.
        self.__dict__.update(state)
        self.__post_init__()

    def __getstate__(self) -> dict[str, Any]:
        # Without what is cached.
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
        """A budget below which no schedule exists.

        Each op needs its inputs and fresh outputs at once, beside the constants that the program holds.
        """
        return self._facts.min_budget_bytes

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
        """Write the trace as JSON lines (see `remint.trace_file`); compressed if `path` ends in `.gz`."""
        from remint.trace_file import write

        write(self, path)

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Read what `save` wrote; a `TraceError` names the line of a bad file."""
        from remint.trace_file import read

        return read(path)

    @classmethod
    def from_dtr_log(cls, path: Path, *, releases: bool = True) -> Trace:
        """Read a log in the format of DTR's authors, plain or `.gz`.

        Without `releases` no tensor is ever released; what is held at the end stays the same.
        """
        from remint.dtr_log import read

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


class TraceBuilder:
    """Makes a trace event by event; every mistake is a `TraceError`, and leaves the builder as it was.

    >>> builder = TraceBuilder()
    >>> weight = builder.constant(4096)
    >>> (activation,) = builder.call("conv", [weight], [65536], seconds=0.0025, source="net.py:12")
    >>> flat = builder.view("flatten", activation)
    >>> (positive,) = builder.mutate("relu_", [activation], [0], seconds=0.0001)
    >>> builder.release(activation)
    >>> builder.call("sum", [activation], [4], seconds=0.0001)
    Traceback (most recent call last):
    remint.errors.TraceError: event 5, call 'sum': argument 0 is tensor 1, which was released before
    """

    def __init__(self) -> None:
        self._event: tuple[int, str | None] = (CONSTANT, None)  # what is being added: kind and name
        self._kinds = bytearray()
        self._nanoseconds: list[int] = []
        self._arg_offsets = [0]
        self._args: list[int] = []
        self._effects: dict[int, int] = {}  # per place in _args that has one
        self._out_offsets = [0]
        self._nbytes: list[int] = []
        self._aliases: list[int] = []
        self._name_ids: list[int] = []
        self._names: dict[str, int] = {}
        self._source_ids: list[int] = []
        self._sources: dict[str, int] = {}
        self._num_requests: dict[int, int] = {}  # per event that has any
        self._request_bytes: list[int] = []
        self._request_outputs: list[int] = []
        self._storage_bytes: list[int] = []  # per tensor: the size of its storage
        self._held = bytearray()  # per tensor: 1 until it is released

    @property
    def num_events(self) -> int:
        """The number of events so far."""
        return len(self._kinds)

    @property
    def num_tensors(self) -> int:
        """The number of tensors so far, which is also the number of the next one."""
        return len(self._nbytes)

    def constant(self, nbytes: int, name: str = "constant", *, where: Where = "arena") -> int:
        """Add a tensor that nothing can remake; return its number. `where` it is: see `Constant`."""
        self._begin(CONSTANT, name)
        size = check_bytes(self._fail, nbytes)
        if where not in WHERE:
            self._fail(f"where is one of {', '.join(WHERE)}, not {where!r}")
        self._append(CONSTANT, name)
        return self._append_tensor(size, WHERE[where], size)

    def call(
        self,
        name: str,
        args: Integers,
        nbytes: Integers,
        seconds: float,
        *,
        aliases: Integers | None = None,
        source: str | None = None,
        requests: Sequence[Request] | None = None,
        once: Integers = (),
        kept: Integers = (),
    ) -> tuple[int, ...]:
        """Add an op with `len(nbytes)` outputs; return their numbers.

        `aliases` says for each output which argument's storage it shares (it then has 0 bytes of its own), or
        -1. An op all of whose outputs share one becomes a view. An op may have no outputs at all: it reads.

        `requests` are the memory requests of the kernel, where they are known: `("allocate", nbytes, i)` for
        output i, `("allocate", nbytes)` for scratch, `("free", k)` for the k-th allocation of this op.
        Scratch that is not freed goes when the op ends. If there are any, they must make each fresh output.

        The outputs `once` (their indices) cannot be made again, nor can the outputs `kept`, which come last: memory
        that outlives the op and is not known to be a tensor before an op takes it for an argument.
        """
        self._begin(CALL, name, source)
        fail = self._fail
        read = check_args(fail, args, self._held)
        sizes = [check_bytes(fail, size) for size in check_list(fail, "bytes", nbytes)]
        shared = [FRESH] * len(sizes) if aliases is None else check_aliases(fail, aliases, sizes, len(read))
        shared = mark_outputs(fail, shared, once, kept)
        nanoseconds = check_seconds(fail, seconds)
        asked = () if requests is None else check_requests(fail, requests, sizes, shared)
        self._append(VIEW if shared and min(shared) >= 0 else CALL, name, read, nanoseconds, source, asked)
        stored = [self._storage_bytes[read[a]] if a >= 0 else size for a, size in zip(shared, sizes, strict=True)]
        return tuple(map(self._append_tensor, sizes, shared, stored))

    def view(self, name: str, arg: int, seconds: float = 0.0, *, source: str | None = None) -> int:
        """Add an op whose one output shares the storage of `arg`; return its number.

        A view of several arguments, or with several outputs, is a call with `aliases`.
        """
        (output,) = self.call(name, (arg,), (0,), seconds, aliases=(0,), source=source)
        return output

    def mutate(
        self,
        name: str,
        args: Integers,
        mutated: Integers,
        seconds: float,
        *,
        nbytes: Integers = (),
        overwritten: Integers = (),
        effects: Integers | None = None,
        source: str | None = None,
        requests: Sequence[Request] | None = None,
        once: Integers = (),
        kept: Integers = (),
    ) -> tuple[int, ...]:
        """Add an op that writes the arguments with the indices `mutated` in place; return what they become.

        If the program has no other name for a tensor that was written, `release` it afterwards. The op can have more
        outputs, of `nbytes` fresh bytes. Those of `mutated` that are `overwritten` are not read. `effects` are
        arguments that are written, but that nothing it makes depends on; with it, even if it is empty, `mutated` may
        be, too.
        """
        self._begin(MUTATE, name, source)
        fail = self._fail
        read = check_args(fail, args, self._held)
        written = check_mutated(fail, mutated, len(read), may_be_none=effects is not None)
        done = [(place, OVERWRITES) for place in check_places(fail, "overwritten", overwritten, len(read))]
        if not {place for place, _ in done} <= set(written):
            fail("overwritten are some of mutated")
        for place in check_places(fail, "effects", () if effects is None else effects, len(read)):
            if place in written:
                fail(f"argument {place} is written in place and as a side effect: name it once")
            done.append((place, SIDE_EFFECT))
        nanoseconds = check_seconds(fail, seconds)
        sizes = [self._storage_bytes[read[index]] for index in written]
        fresh = [check_bytes(fail, size) for size in check_list(fail, "bytes", nbytes)]
        aliases = mark_outputs(fail, written + [FRESH] * len(fresh), once, kept)
        sizes += fresh
        asked = () if requests is None else check_requests(fail, requests, sizes, aliases)
        self._effects |= {len(self._args) + place: effect for place, effect in done}
        self._append(MUTATE, name, read, nanoseconds, source, asked)
        return tuple(map(self._append_tensor, sizes, aliases, sizes))

    def pin(self, tensor: int, *, fixed: bool = False) -> None:
        """From here on `tensor` cannot be made again; nor be moved, if it is `fixed`."""
        self._about(FIX if fixed else PIN, tensor)

    def materialize(self, tensor: int) -> None:
        """Read `tensor` around all ops."""
        self._about(MATERIALIZE, tensor)

    def release(self, tensor: int) -> None:
        """Let go of `tensor`: from here on it may not be an argument."""
        self._held[self._about(RELEASE, tensor)] = 0

    def _about(self, kind: int, tensor: int) -> int:
        self._event = (kind, None)
        (checked,) = check_args(self._fail, [tensor], self._held)
        self._append(kind, None, (checked,))
        return checked

    def mark(self, name: str) -> None:
        """Name this point of the trace."""
        self._begin(MARK, name)
        self._append(MARK, name)

    def build(self, held: Integers | None = None) -> Trace:
        """Return the trace so far.

        `held` is what the program holds at the end, in the order in which it is made resident there; by
        default all that was not released, in the order it was made.
        """
        if held is None:
            kept = [tensor for tensor, is_held in enumerate(self._held) if is_held]
        else:
            kept = self._check_held(held)
        if max(sum(self._nanoseconds), sum(self._nbytes)) > MAX_INT64:
            raise TraceError("the nanoseconds or the bytes of this trace add up to more than 64 bits can hold")
        num_requests = np.zeros(self.num_events + 1, np.int64)
        for event, count in self._num_requests.items():
            num_requests[event + 1] = count
        effects = np.full(len(self._args), READS, np.uint8)
        effects[list(self._effects)] = list(self._effects.values())
        return Trace(
            kinds=np.array(self._kinds, np.uint8),
            nanoseconds=np.array(self._nanoseconds, np.int64),
            arg_offsets=np.array(self._arg_offsets, np.int64),
            args=np.array(self._args, np.int32),
            effects=effects,
            out_offsets=np.array(self._out_offsets, np.int64),
            nbytes=np.array(self._nbytes, np.int64),
            aliases=np.array(self._aliases, np.int32),
            name_ids=np.array(self._name_ids, np.int32),
            names=tuple(self._names),
            source_ids=np.array(self._source_ids, np.int32),
            sources=tuple(self._sources),
            request_offsets=np.cumsum(num_requests),
            request_bytes=np.array(self._request_bytes, np.int64),
            request_outputs=np.array(self._request_outputs, np.int32),
            held=np.array(kept, np.int32),
        )

    def _begin(self, kind: int, name: str, source: str | None = None) -> None:
        self._event = (kind, name)
        if not isinstance(name, str):
            self._fail("the name must be a string")
        if source is not None and not isinstance(source, str):
            self._fail(f'the source must be a string such as "net.py:12", not {source!r}')

    def _fail(self, problem: str) -> NoReturn:
        kind, name = self._event
        label = KINDS[kind] if name is None else f"{KINDS[kind]} {name!r}"
        raise TraceError(f"event {self.num_events}, {label}: {problem}")

    def _append(
        self,
        kind: int,
        name: str | None,
        args: Sequence[int] = (),
        nanoseconds: int = 0,
        source: str | None = None,
        requests: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._kinds.append(kind)
        self._nanoseconds.append(nanoseconds)
        self._args.extend(args)
        self._arg_offsets.append(len(self._args))
        self._out_offsets.append(len(self._nbytes))
        self._name_ids.append(-1 if name is None else self._names.setdefault(name, len(self._names)))
        self._source_ids.append(-1 if source is None else self._sources.setdefault(source, len(self._sources)))
        if requests:
            self._num_requests[self.num_events - 1] = len(requests)
            for size, output in requests:
                self._request_bytes.append(size)
                self._request_outputs.append(output)

    def _append_tensor(self, nbytes: int, alias: int, storage_bytes: int) -> int:
        self._nbytes.append(nbytes)
        self._aliases.append(alias)
        self._storage_bytes.append(storage_bytes)
        self._held.append(1)
        self._out_offsets[-1] = len(self._nbytes)
        return len(self._nbytes) - 1

    def _check_held(self, held: Integers) -> list[int]:
        def fail(problem: str) -> NoReturn:
            raise TraceError(f"held at the end: {problem}")

        kept = [check_integer(fail, "a tensor", tensor) for tensor in check_list(fail, "held", held)]
        for tensor in kept:
            if not 0 <= tensor < self.num_tensors:
                fail(f"tensor {tensor} does not exist: there are {self.num_tensors}, from 0")
            if not self._held[tensor]:
                fail(f"tensor {tensor} was released before")
        if len(set(kept)) != len(kept):
            fail("a tensor is named twice")
        return kept
