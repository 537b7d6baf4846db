"""`remint.record`: the op stream of a real program, with measured costs, as a trace."""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from remint import torch_extension
from remint.runtime.patches import module_paths, tensor_methods
from remint.trace import Trace, TraceBuilder
from remint.trace.events import (
    CALL,
    CONSTANT,
    FIX,
    KEPT,
    MARK,
    MATERIALIZE,
    MUTATE,
    ONCE,
    OVERWRITES,
    PIN,
    RELEASE,
    SIDE_EFFECT,
    WHERE,
    Request,
)

if TYPE_CHECKING:
    from remint import _torch

Costs = Literal["median", "measured"]


class Recording:
    """The result of `with remint.record() as recording`; its `trace` is there after the `with`."""

    def __init__(self) -> None:
        self._trace: Trace | None = None
        self.peak_bytes = 0
        """The most bytes that were in use at once, scratch and alignment included."""
        self.bookkeeping_seconds = 0.0
        """Real time spent around the program's ops."""

    @property
    def trace(self) -> Trace:
        """The recorded trace."""
        if self._trace is None:
            raise ValueError("the trace is not complete yet: read it after the `with` block")
        return self._trace

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to a file; see `Trace.save`."""
        self.trace.save(path)


class record:  # noqa: N801 (used like a function: `with remint.record() as recording`)
    """Record the ops and memory requests of the code inside, without a budget.

    >>> import torch
    >>> model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    >>> with record() as recording:
    ...     model(torch.randn(512, 64)).square().mean().backward()
    >>> recording.trace.num_ops > 16
    True

    The trace has every op below autograd, backward pass and optimizer included, with its storages: what it reads,
    writes and makes, the memory it asks for in order, and where each dies. `remint.simulate` reads it, and with
    `memory="arena"` does just what `remint.budget(..., costs=trace)` does when the program runs again.

    Run one step before you record. The first step differs from the others: lazy initialisation, page faults, optimizer
    state.

    Args:
        costs: `"median"` gives all ops of the same operator, sizes and types the median of what they took, since one
            measurement can be an outlier; `"measured"` leaves each as it was.
        source_lines: note the line of the program that each op came from, and the module.
    """

    def __init__(self, *, costs: Costs = "median", source_lines: bool = False) -> None:
        if costs not in get_args(Costs):
            raise ValueError(f'costs is "median" or "measured", not {costs!r}')
        self._costs = costs
        self._source_lines = source_lines
        self._open: list[tuple[_torch.Session, Recording]] = []

    def __enter__(self) -> Recording:
        # All memory of the machine, so that nothing is evicted. Unused pages cost nothing.
        everything = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        session = torch_extension.new_session(everything, spill=True, record=True, source_lines=self._source_lines)
        tensor_methods.install()
        if self._source_lines:
            module_paths.install()
        recording = Recording()
        self._open.append((session, recording))
        session.enter()
        return recording

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session, recording = self._open.pop()
        session.leave()
        tensor_methods.uninstall()
        if self._source_lines:
            module_paths.uninstall()
        # Close first: tensors that died in the last op are released only then.
        session.close()
        columns = session.recorded()
        assert columns is not None
        figures = session.figures()
        recording.peak_bytes = figures["peak_bytes"]
        recording.bookkeeping_seconds = figures["bookkeeping_ns"] * 1e-9
        recording._trace = trace_of(columns, self._costs)


def trace_of(columns: _torch.Columns, costs: Costs) -> Trace:
    """Return the trace with these columns, as the session has them."""
    builder = TraceBuilder()
    nanoseconds = columns["nanoseconds"]
    if costs == "median":
        nanoseconds = _medians(nanoseconds, columns["signatures"])
    seconds = (nanoseconds / 1e9).tolist()
    args, arg_offsets = columns["args"].tolist(), columns["arg_offsets"].tolist()
    effects = columns["effects"].tolist()
    nbytes, aliases = columns["nbytes"].tolist(), columns["aliases"].tolist()
    out_offsets, request_offsets = columns["out_offsets"].tolist(), columns["request_offsets"].tolist()
    where = {code: word for word, code in WHERE.items()}
    for event, kind in enumerate(columns["kinds"].tolist()):
        read = args[arg_offsets[event] : arg_offsets[event + 1]]
        begin, end = out_offsets[event], out_offsets[event + 1]
        if kind == CONSTANT:
            builder.constant(nbytes[begin], "memory", where=where[aliases[begin]])  # type: ignore[arg-type]
        elif kind == RELEASE:
            builder.release(read[0])
        elif kind in (PIN, FIX):
            builder.pin(read[0], fixed=kind == FIX)
        elif kind == MATERIALIZE:
            builder.materialize(read[0])
        elif kind == MARK:
            builder.mark(columns["names"][columns["name_ids"][event]])
        else:
            marks = aliases[begin:end]
            done = effects[arg_offsets[event] : arg_offsets[event + 1]]
            mutated = [mark for mark in marks if mark >= 0]
            source = columns["source_ids"][event]
            common: dict[str, Any] = {
                "source": columns["sources"][source] if source >= 0 else None,
                "requests": _requests(columns, request_offsets[event], request_offsets[event + 1]),
                "once": [place for place, mark in enumerate(marks) if mark == ONCE],
                "kept": [place for place, mark in enumerate(marks) if mark == KEPT],
            }
            name = columns["names"][columns["name_ids"][event]]
            fresh = nbytes[begin + len(mutated) : end]
            if kind == CALL:
                builder.call(name, read, fresh, seconds[event], **common)
            else:
                assert kind == MUTATE
                builder.mutate(
                    name,
                    read,
                    mutated,
                    seconds[event],
                    nbytes=fresh,
                    overwritten=[place for place, effect in enumerate(done) if effect == OVERWRITES],
                    effects=[place for place, effect in enumerate(done) if effect == SIDE_EFFECT],
                    **common,
                )
    return builder.build()


def _requests(columns: _torch.Columns, begin: int, end: int) -> list[Request]:
    requests: list[Request] = []
    for size, output in zip(
        columns["request_bytes"][begin:end].tolist(), columns["request_outputs"][begin:end].tolist(), strict=True
    ):
        if size < 0:
            requests.append(("free", -size - 1))
        else:
            requests.append(("allocate", size) if output < 0 else ("allocate", size, output))
    return requests


def _medians(nanoseconds: npt.NDArray[np.int64], signatures: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    medians = nanoseconds.copy()
    _, group_of = np.unique(signatures, return_inverse=True)
    order = np.argsort(group_of, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(group_of[order])) + 1):
        if len(group):  # an empty recording has one empty group
            medians[group] = int(np.median(nanoseconds[group]))
    return medians
