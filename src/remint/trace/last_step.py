"""Cuts the last step out of a trace of several equal ones: what was there when it began becomes constants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from remint.trace.events import CALL, CONSTANT, ELSEWHERE, FRESH, MUTATE, RELEASE
from remint.trace.trace import Trace

Numbers = npt.NDArray[Any]


def last_step(trace: Trace, num_steps: int) -> Trace | None:
    """Return the last of `num_steps` steps; None if it does not have the same ops as the one before.

    >>> from remint import TraceBuilder
    >>> builder = TraceBuilder()
    >>> weight = builder.constant(64)
    >>> for _ in range(2):
    ...     (x,) = builder.call("f", [weight], [32], 1.0)
    ...     (y,) = builder.call("g", [x], [32], 1.0)
    ...     builder.release(x)
    ...     builder.release(y)
    >>> last_step(builder.build(), 2)
    <Trace: 5 events, 2 ops in 2.0 s, 3 tensors>
    """
    ops = np.flatnonzero((trace.kinds >= CALL) & (trace.kinds <= MUTATE))
    count, odd = divmod(len(ops), num_steps)
    if odd or not count:
        return None
    names = trace.name_ids[ops]
    if num_steps > 1 and not np.array_equal(names[-count:], names[-2 * count : -count]):
        return None
    begin = int(ops[-count - 1]) + 1 if num_steps > 1 else 0
    # What is dropped before the first op is of the step before.
    while num_steps > 1 and trace.kinds[begin] == RELEASE:
        begin += 1
    return _from_event(trace, begin)


def constants_first(trace: Trace) -> Trace:
    """Return the same events, with all constants before all others: they were there when the step began.

    >>> from remint import TraceBuilder
    >>> builder = TraceBuilder()
    >>> (x,) = builder.call("f", [], [32], 1.0)
    >>> weight = builder.constant(64)
    >>> (y,) = builder.call("g", [x, weight], [32], 1.0)
    >>> [type(event).__name__ for event in constants_first(builder.build()).events()]
    ['Constant', 'Call', 'Call']
    """
    is_constant = trace.kinds == CONSTANT
    events = np.argsort(~is_constant, kind="stable")
    num_outputs = np.diff(trace.out_offsets)
    tensors = np.argsort(~np.repeat(is_constant, num_outputs), kind="stable")
    new = np.empty(trace.num_tensors, np.int32)
    new[tensors] = np.arange(trace.num_tensors, dtype=np.int32)

    def offsets(counts: Numbers) -> Numbers:
        return np.concatenate([[0], np.cumsum(counts[events])]).astype(np.int64)

    # Constants have no arguments and no requests: those of the others stay in order.
    return replace(
        trace,
        kinds=trace.kinds[events],
        nanoseconds=trace.nanoseconds[events],
        arg_offsets=offsets(np.diff(trace.arg_offsets)),
        args=new[trace.args],
        out_offsets=offsets(num_outputs),
        nbytes=trace.nbytes[tensors],
        aliases=trace.aliases[tensors],
        name_ids=trace.name_ids[events],
        source_ids=trace.source_ids[events],
        request_offsets=offsets(np.diff(trace.request_offsets)),
        held=new[trace.held],
    )


def _from_event(trace: Trace, begin: int) -> Trace:
    first_tensor = int(trace.out_offsets[begin])
    roots = _roots(trace, first_tensor)
    releases = np.flatnonzero(trace.kinds == RELEASE)
    dropped = trace.args[trace.arg_offsets[releases]]
    gone = set(dropped[releases < begin].tolist())
    # One constant stands for all tensors of a storage. It is released when the last of them is.
    numbers: dict[int, int] = {}
    tensors_of: dict[int, int] = {}
    new = np.full(trace.num_tensors, -1, np.int32)
    for tensor in range(first_tensor):
        if tensor not in gone:
            number = numbers.setdefault(roots[tensor], len(numbers))
            new[tensor] = number
            tensors_of[number] = tensors_of.get(number, 0) + 1
    new[first_tensor:] = len(numbers) + np.arange(trace.num_tensors - first_tensor)
    keep = np.ones(trace.num_events - begin, bool)
    for event, tensor in zip(releases.tolist(), dropped.tolist(), strict=True):
        if event >= begin and tensor < first_tensor:
            number = int(new[tensor])
            tensors_of[number] -= 1
            keep[event - begin] = not tensors_of[number]
    return _assembled(trace, begin, list(numbers), new, keep)


def _roots(trace: Trace, count: int) -> list[int]:
    """Return, for each of the first tensors, the one that first had its storage."""
    roots = list(range(count))
    aliases, args = trace.aliases.tolist(), trace.args.tolist()
    arguments = np.repeat(trace.arg_offsets[:-1], np.diff(trace.out_offsets)).tolist()
    for tensor in range(count):
        if aliases[tensor] >= 0:
            roots[tensor] = roots[args[arguments[tensor] + aliases[tensor]]]
    return roots


def _assembled(trace: Trace, begin: int, roots: list[int], new: Numbers, keep: Numbers) -> Trace:
    """Return a trace of a constant for each of `roots`, and the events from `begin` on that are kept."""
    num = len(roots)
    first_arg, first_tensor, first_request = (
        int(offsets[begin]) for offsets in (trace.arg_offsets, trace.out_offsets, trace.request_offsets)
    )
    num_args = np.diff(trace.arg_offsets)[begin:]
    args_kept = np.repeat(keep, num_args)
    is_elsewhere = trace.aliases[roots] == ELSEWHERE
    held = list(dict.fromkeys(new[trace.held].tolist()))

    def after_constants(column: Numbers, of_constants: int) -> Numbers:
        return np.concatenate([np.full(num, of_constants, column.dtype), column[begin:][keep]])

    def offsets(counts: Numbers, per_constant: int) -> Numbers:
        return np.concatenate([[0], np.cumsum([*[per_constant] * num, *counts.tolist()])]).astype(np.int64)

    return Trace(
        kinds=after_constants(trace.kinds, CONSTANT),
        nanoseconds=after_constants(trace.nanoseconds, 0),
        arg_offsets=offsets(num_args[keep], 0),
        args=new[trace.args[first_arg:][args_kept]],
        effects=trace.effects[first_arg:][args_kept],
        out_offsets=offsets(np.diff(trace.out_offsets)[begin:][keep], 1),
        nbytes=np.concatenate([trace.nbytes[roots], trace.nbytes[first_tensor:]]),
        aliases=np.concatenate(
            [np.where(is_elsewhere, ELSEWHERE, FRESH).astype(np.int32), trace.aliases[first_tensor:]]
        ),
        name_ids=after_constants(trace.name_ids, len(trace.names)),
        names=(*trace.names, "memory"),
        source_ids=after_constants(trace.source_ids, -1),
        sources=trace.sources,
        request_offsets=offsets(np.diff(trace.request_offsets)[begin:][keep], 0),
        request_bytes=trace.request_bytes[first_request:],
        request_outputs=trace.request_outputs[first_request:],
        held=np.array(held, np.int32),
    )
