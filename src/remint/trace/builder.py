"""How a trace is made: event by event, each checked as it comes.

`TraceBuilder` is the one way to make a trace, so every `Trace` is legal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from remint.errors import TraceError
from remint.trace.events import (
    CALL,
    CONSTANT,
    FIX,
    FRESH,
    KINDS,
    MARK,
    MATERIALIZE,
    MAX_INT64,
    MUTATE,
    OVERWRITES,
    PIN,
    READS,
    RELEASE,
    SIDE_EFFECT,
    VIEW,
    WHERE,
    Integers,
    Request,
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
from remint.trace.trace import Trace


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
