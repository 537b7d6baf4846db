"""Plans of the exact model: the engine does what they say, to the byte and op for op."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from remint import BudgetError, Graph, TraceBuilder, _core, plan, verify
from remint.graph import Plan
from remint.graph.step_model import StepModel, step_model
from remint.graph.steps import Compute
from remint.planners.step_planning import actions_of
from remint.trace import Trace
from tests.support.trace_strategies import steps

ALIGNMENT = 64


def follow(trace: Trace, model: StepModel, found: Plan) -> _core.SimulatedStep:
    """Return what the engine does when it follows the plan, on memory of exactly the plan's peak."""
    simulated = _core.simulate_step(
        trace,
        budget=found.peak_bytes,
        alignment=ALIGNMENT,
        actions=actions_of(model, found),
        arena_bytes=4 * found.peak_bytes + 65536,
    )
    assert simulated is not None
    return simulated


def runs_again(trace: Trace, model: StepModel, found: Plan) -> list[int]:
    """Return the ops of the trace that the plan runs again up to its last op, in order."""
    ran: set[int] = set()
    again, last = [], 0
    for step in found.steps:
        if not isinstance(step, Compute):
            continue
        if step.op in ran:
            again.append(model.numbers[step.op])
        elif model.numbers[step.op] is not None:
            last = len(again)
        ran.add(step.op)
    return again[:last]


def rematerialized(trace: Trace, decisions: str) -> list[int]:
    """Return the ops of the trace that the engine ran again, in order."""
    number = -1
    maker: dict[int, int] = {}
    for event in range(trace.num_events):
        number += 1 <= trace.kinds[event] <= 3
        maker.update(dict.fromkeys(range(trace.out_offsets[event], trace.out_offsets[event + 1]), number))
    return [maker[int(decision[1:])] for decision in decisions.split(";")[:-1] if decision[0] == "R"]


def peak_of_ops(model: StepModel, found: Plan) -> int:
    """Return the peak up to the last op of the trace. What is made after it is left to the next step."""
    graph = model.graph
    resident = dict(graph.constants)
    ran: set[int] = set()
    peak = so_far = sum(resident.values())
    for step in found.steps:
        if not isinstance(step, Compute):
            del resident[step.value]
            continue
        op = graph.ops[step.op]
        for value in op.consumes.values():
            del resident[value]
        resident.update(op.outputs)
        so_far = max(so_far, sum(resident.values()))
        if step.op not in ran and model.numbers[step.op] is not None:
            peak = so_far
        ran.add(step.op)
    return peak if model.num_ops else so_far


@pytest.mark.slow
@settings(max_examples=300, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(steps(), st.sampled_from(["search", "demand", "keep", "dtr"]), st.floats(0, 1))
def test_the_engine_does_what_a_plan_says(trace: Trace, planner: str, tightness: float) -> None:
    model = step_model(trace, alignment=ALIGNMENT)
    graph = model.graph
    budget = int(graph.min_budget_bytes + tightness * (graph.peak_bytes - graph.min_budget_bytes))
    try:
        found = plan(graph, budget, planner, time_limit=0.02)
    except BudgetError:
        return
    verify(graph, found, budget)
    simulated = follow(trace, model, found)
    assert rematerialized(trace, simulated["decisions"]) == runs_again(trace, model, found)
    assert simulated["peak_bytes"] == peak_of_ops(model, found)
    followed = simulated["followed"]
    assert followed is not None
    assert not followed["departed"]
    assert followed["peak_bytes"] <= simulated["peak_bytes"]
    assert rematerialized(trace, followed["decisions"]) == rematerialized(trace, simulated["decisions"])


def in_place_chain(length: int) -> Trace:
    """Writes a large tensor in place again and again, then reads it in a second pass."""
    builder = TraceBuilder()
    weight = builder.constant(4096, "weight")
    outputs = []
    for _ in range(length):
        (value,) = builder.call("make", [weight], [1 << 20], 1e-3)
        (value2,) = builder.mutate("relu_", [value], [0], 1e-4)
        builder.release(value)
        outputs.append(value2)
    for value in reversed(outputs):
        (gradient,) = builder.call("backward", [value], [64], 1e-3)
        builder.release(value)
        builder.release(gradient)
    return builder.build()


def test_an_op_in_place_takes_no_bytes_of_its_own() -> None:
    trace = in_place_chain(8)
    assert Graph.from_trace(trace, inplace="ghost").peak_bytes == 4096 + 8 * (1 << 20) + 64
    assert Graph.from_trace(trace).peak_bytes == 4096 + 9 * (1 << 20)
    model = step_model(trace, alignment=ALIGNMENT)
    found = plan(model.graph, 4096 + 3 * (1 << 20) + 64, "auto", time_limit=2)
    # Five of eight are made again: two ops each.
    assert found.cost == pytest.approx(model.graph.cost + 5 * 1.1e-3)
    assert follow(trace, model, found)["peak_bytes"] == found.peak_bytes


def test_no_op_runs_again_after_its_weight_was_written() -> None:
    builder = TraceBuilder()
    weight = builder.constant(64, "weight", where="elsewhere")
    (kept,) = builder.call("linear", [weight], [1000], 1.0)
    (other,) = builder.call("other", [], [5000], 1.0)
    builder.release(other)
    builder.mutate("step", [weight], [0], 1.0)
    builder.call("read", [kept], [64], 1.0)
    model = step_model(builder.build(), alignment=1)
    found = plan(model.graph, model.graph.peak_bytes, "keep")
    sequence = list(found.sequence)
    step = next(i for i, op in enumerate(model.graph.ops) if op.name == "step")
    linear = next(i for i, op in enumerate(model.graph.ops) if op.name == "linear")
    assert model.graph.last_stages[linear] <= step
    with pytest.raises(ValueError, match="must not run twice"):
        Plan.from_sequence(model.graph, [*sequence, linear])


def test_a_graph_names_what_is_wrong_with_a_consumed_input() -> None:
    from remint.graph.graph import Op

    make = Op("make", 1.0, (), {"x": 8})
    write = Op("write", 1.0, ("x",), {"y": 8}, consumes={"y": "x"})
    with pytest.raises(ValueError, match="has consumed"):
        Graph((make, write, Op("late", 1.0, ("x",), {"z": 8})))
    with pytest.raises(ValueError, match="another size"):
        Graph((make, Op("write", 1.0, ("x",), {"y": 16}, consumes={"y": "x"})))
    with pytest.raises(ValueError, match="constants stay"):
        Graph((Op("write", 1.0, ("x",), {"y": 8}, consumes={"y": "x"}),), {"x": 8})
    graph = Graph((make, write), outputs=("y",))
    assert graph.peak_bytes == 8
    assert Graph.from_json(graph.to_json()) == graph
