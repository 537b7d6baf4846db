"""The columns of a trace, and that a trace never changes."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from remint.trace import Trace, TraceBuilder
from remint.trace.events import Call, Constant, Mark, Mutate, Release, View
from tests.support.small_trace import EVENTS, small
from tests.support.trace_strategies import traces


def test_columns() -> None:
    trace = small()
    columns = {
        "kinds": ([0, 1, 2, 3, 4, 5, 1], np.uint8),
        "nanoseconds": ([0, 2_500_000, 1000, 100_000, 0, 0, 1_000_000], np.int64),
        "arg_offsets": ([0, 0, 1, 2, 4, 5, 5, 6], np.int64),
        "args": ([0, 1, 2, 1, 1, 3], np.int32),
        "out_offsets": ([0, 1, 2, 3, 4, 4, 4, 6], np.int64),
        "nbytes": ([4096, 65536, 0, 65536, 0, 128], np.int64),
        "aliases": ([-1, -1, 0, 1, 0, -1], np.int32),
        "name_ids": ([0, 1, 2, 3, -1, 4, 5], np.int32),
        "source_ids": ([-1, 0, -1, -1, -1, -1, 1], np.int32),
        "request_offsets": ([0, 0, 0, 0, 0, 0, 0, 3], np.int64),
        "request_bytes": ([512, 256, -1], np.int64),
        "request_outputs": ([-1, 1, -1], np.int32),
        "held": ([0, 2, 3, 4, 5], np.int32),
    }
    for name, (values, dtype) in columns.items():
        column = getattr(trace, name)
        assert column.dtype == dtype, name
        assert column.tolist() == values, name
    assert trace.names == ("weight", "conv", "flatten", "relu_", "backward", "split")
    assert trace.sources == ("net.py:12", "net.py:13")


def test_counts() -> None:
    trace = small()
    assert (trace.num_events, len(trace), trace.num_ops, trace.num_tensors) == (7, 7, 4, 6)
    assert trace.seconds == 0.003601
    assert repr(trace) == "<Trace: 7 events, 4 ops in 3.6 ms, 6 tensors>"
    assert list(trace.events()) == EVENTS


def test_empty() -> None:
    trace = TraceBuilder().build()
    assert (len(trace), trace.num_ops, trace.num_tensors, trace.seconds) == (0, 0, 0, 0)
    assert list(trace.events()) == []
    assert trace.arg_offsets.tolist() == trace.out_offsets.tolist() == trace.request_offsets.tolist() == [0]
    assert repr(trace) == "<Trace: 0 events, 0 ops in 0 s, 0 tensors>"


def test_immutable() -> None:
    for trace in (small(), pickle.loads(pickle.dumps(small()))):
        assert trace == small()
        for name, column in vars(trace).items():
            if isinstance(column, np.ndarray):
                assert not column.flags.writeable, name
        with pytest.raises(AttributeError):
            trace.names = ()
        with pytest.raises(TypeError):
            hash(trace)


def test_a_trace_does_not_follow_its_builder() -> None:
    builder = TraceBuilder()
    builder.constant(1)
    first = builder.build()
    builder.release(0)
    assert len(first) == 1
    assert len(builder.build()) == 2
    assert first != builder.build()
    assert first != "first"


def test_an_op_whose_outputs_all_alias_is_a_view() -> None:
    builder = TraceBuilder()
    whole = builder.constant(8)
    assert builder.call("chunk", [whole], [0, 0], 0.0, aliases=[0, 0]) == (1, 2)
    builder.call("item", [1], [], 0.0)
    assert list(builder.build().events())[1:] == [
        View("chunk", (0,), (1, 2), (0, 0), 0.0),
        Call("item", (1,), (), (), (), 0.0),
    ]


def test_a_view_of_a_view_written_in_place_has_the_size_of_the_storage() -> None:
    builder = TraceBuilder()
    (whole,) = builder.call("op", [], [100], 0.0)
    part = builder.view("slice", builder.view("slice", whole))
    (written,) = builder.mutate("zero_", [part], [0], 0.0)
    again = builder.view("slice", written)
    builder.mutate("zero_", [again], [0], 0.0)
    assert builder.build().nbytes.tolist() == [100, 0, 0, 100, 0, 100]


def test_numpy_numbers_are_numbers() -> None:
    builder = TraceBuilder()
    weight = builder.constant(np.int64(8))
    builder.call("op", np.array([weight]), np.array([16, 32]), np.float32(0.5), aliases=np.array([-1, -1]))
    (event,) = list(builder.build(held=np.array([2])).events())[1:]
    assert event == Call("op", (0,), (1, 2), (16, 32), (-1, -1), 0.5)


@given(trace=traces())
def test_events_rebuild_the_trace(trace: Trace) -> None:
    builder = TraceBuilder()
    for event in trace.events():
        match event:
            case Constant():
                assert builder.constant(event.nbytes, event.name) == event.output
            case Call() | View():
                nbytes = event.nbytes if isinstance(event, Call) else [0] * len(event.outputs)
                options: dict[str, Any] = {"source": event.source, "requests": event.requests}
                outputs = builder.call(event.name, event.args, nbytes, event.seconds, aliases=event.aliases, **options)
                assert outputs == event.outputs
            case Mutate():
                options = {"source": event.source, "requests": event.requests}
                outputs = builder.mutate(event.name, event.args, event.mutated, event.seconds, **options)
                assert outputs == event.outputs
            case Release():
                builder.release(event.tensor)
            case Mark():
                builder.mark(event.name)
    assert builder.build(trace.held) == trace
