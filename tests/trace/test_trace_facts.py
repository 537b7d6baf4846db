"""Peak, minimum budget and constants of a trace, against a simple model and by hand."""

from __future__ import annotations

from hypothesis import given

from remint.trace import Trace, TraceBuilder
from tests.support.trace_oracle import trace_facts
from tests.support.trace_strategies import traces


@given(trace=traces())
def test_facts(trace: Trace) -> None:
    facts = trace_facts(trace)
    assert trace.peak_bytes == facts.peak_bytes
    assert trace.min_budget_bytes == facts.min_budget_bytes
    assert trace.constant_bytes == facts.constant_bytes


def test_facts_by_hand() -> None:
    builder = TraceBuilder()
    weight = builder.constant(100)
    (a,) = builder.call("op", [weight], [10], 1.0)  # 110 live
    part = builder.view("slice", a)
    builder.release(a)  # the view keeps its storage
    (b,) = builder.mutate("add_", [part], [0], 1.0)  # 120 live, if made afresh
    builder.release(part)
    (c, d) = builder.call("split", [b, b, weight], [20, 3], 1.0)  # 133 live, all of it needed at once
    for tensor in (b, c, weight):
        builder.release(tensor)
    builder.call("op", [d], [40], 1.0)  # 43 live: the constant is let go of
    trace = builder.build()
    assert (trace.peak_bytes, trace.min_budget_bytes, trace.constant_bytes) == (133, 133, 100)
