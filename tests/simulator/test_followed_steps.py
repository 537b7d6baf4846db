"""A learned step is followed exactly as it was simulated, also where replays are deep."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remint import _core, generators, simulate
from remint.graph.step_model import step_model
from remint.trace import Trace, TraceBuilder
from tests.support.trace_strategies import steps

ALIGNMENT = 64
MICROSECOND = 1e-6


def scan(layers: int = 2, length: int = 24, state: int = 64) -> Trace:
    """A training step: states that follow one another, and two gradients that add up over the loop.

    The large tensors have the bytes of all states of a layer. Each takes two ops to make.
    """
    builder = TraceBuilder()
    large = length * state
    (x,) = builder.call("input", [], [state], MICROSECOND)
    saved = []
    for _ in range(layers):
        (before_decay,) = builder.call("mul", [x], [large], 200 * MICROSECOND)
        (decay,) = builder.call("exp", [before_decay], [large], 200 * MICROSECOND)
        builder.release(before_decay)
        (before_drive,) = builder.call("mul", [x], [large], 50 * MICROSECOND)
        (drive,) = builder.call("mul", [before_drive, x], [large], 50 * MICROSECOND)
        (now,) = builder.call("zeros", [], [state], MICROSECOND)
        states = [now]
        for _ in range(length):
            (product,) = builder.call("mul", [decay, now], [state], MICROSECOND)
            (now,) = builder.call("add", [product, drive], [state], MICROSECOND)
            builder.release(product)
            states.append(now)
        builder.release(drive)
        saved.append((x, decay, before_drive, states))
        (x,) = builder.call("out", [now], [state], MICROSECOND)
    (grad,) = builder.call("loss", [x], [state], MICROSECOND)
    builder.release(x)
    for x, decay, before_drive, states in reversed(saved):
        sums: list[int] = []
        for after, before in itertools.pairwise(reversed(states)):
            parts = [
                builder.call("select_backward", [grad], [large], 5 * MICROSECOND)[0],
                builder.call("select_backward", [grad, before], [large], 5 * MICROSECOND)[0],
            ]
            builder.release(after)
            if sums:
                added = [
                    builder.mutate("add_", [s, p], [0], 5 * MICROSECOND)[0] for s, p in zip(sums, parts, strict=True)
                ]
                for tensor in (*sums, *parts):
                    builder.release(tensor)
                sums = added
            else:
                sums = parts
            (new,) = builder.call("mul", [grad, decay], [state], MICROSECOND)
            builder.release(grad)
            grad = new
        builder.release(states[0])
        (new,) = builder.call("backward", [*sums, before_drive, decay, x, grad], [state], 200 * MICROSECOND)
        for tensor in (*sums, before_drive, decay, x, grad):
            builder.release(tensor)
        grad = new
    return builder.build([grad])


def runs(decisions: str) -> list[str]:
    """Return what ran, for the first time and again, in order."""
    return [each for each in decisions.split(";") if each[:1] in ("C", "R")]


@pytest.mark.parametrize("percent", range(40, 100, 4))
def test_what_is_simulated_is_what_is_followed(percent: int):
    """Also where replays are deep, make one output of an op again, or are refused memory on the way."""
    trace = scan()
    assert follow(trace, trace.peak_bytes * percent // 100)


@settings(deadline=None)
@given(steps(), st.floats(0.3, 1.0))
def test_random_steps_are_followed(trace: Trace, share: float):
    model = step_model(trace, alignment=ALIGNMENT)
    follow(trace, int(share * model.graph.peak_bytes))


def follow(trace: Trace, budget: int) -> bool:
    """Check that an arena of ample size sees what was simulated; return whether the step fits in the budget."""
    simulated = _core.simulate_step(trace, budget=budget, alignment=ALIGNMENT, arena_bytes=4 * budget + 65536)
    if simulated is None:
        return False
    followed = simulated["followed"]
    assert followed is not None
    assert not followed["departed"]
    assert runs(followed["decisions"]) == runs(simulated["decisions"])
    assert followed["rematerialized_ns"] == simulated["rematerialized_ns"]
    return True


@pytest.mark.parametrize(
    ("trace", "percent", "part"),
    [(generators.rnn(30), 20, 0.6), (generators.residual(20), 30, 0.95), (generators.tree(5), 20, 0.85)],
    ids=["rnn", "residual", "tree"],
)
def test_simulations_learn_from_each_other(trace: Trace, percent: int, part: float):
    """What a simulation noted of the cost of having values back makes the next one lose less."""
    budget = trace.peak_bytes * percent // 100

    def loss(search_events: int) -> int:
        found = _core.simulate_step(
            trace, budget=budget, alignment=ALIGNMENT, arena_bytes=4 * budget, search_events=search_events
        )
        assert found is not None
        followed = found["followed"]
        assert followed is not None
        assert not followed["departed"]
        assert followed["rematerialized_ns"] == found["rematerialized_ns"]
        return found["rematerialized_ns"]

    assert loss(100_000) < part * loss(0)


@pytest.mark.parametrize(
    ("layers", "length", "percent", "most"),
    [(2, 24, 50, 1.27), (3, 60, 55, 1.12)],
)
def test_what_many_states_are_made_of_is_counted_once(layers: int, length: int, percent: int, most: float):
    """All states of a loop are made of two large tensors, and gradients stand for the whole loop above them."""
    trace = scan(layers, length)
    found = _core.simulate_step(trace, budget=trace.peak_bytes * percent // 100, alignment=ALIGNMENT, search_events=0)
    assert found is not None
    assert found["rematerialized_ns"] <= (most - 1) * int(trace.nanoseconds.sum())


@pytest.mark.parametrize("percent", [30, 40, 60])
@pytest.mark.parametrize("seed", range(4))
def test_to_look_longer_is_never_worse(seed: int, percent: int):
    trace = generators.random_dag(80, seed=seed)
    budget = trace.peak_bytes * percent // 100
    quick, long = (
        _core.simulate_step(trace, budget=budget, alignment=ALIGNMENT, search_events=events) for events in (0, 20_000)
    )
    assert quick is not None
    assert long is not None
    assert long["rematerialized_ns"] <= quick["rematerialized_ns"]


def step_with_a_late_loss(length: int = 24) -> Trace:
    """Return a step after which the program still has its loss, when the weights are written that it was made of."""
    b = TraceBuilder()
    weights = [b.constant(64) for _ in range(length)]
    values = [b.call("input", [], [64], MICROSECOND)[0]]
    for weight in weights:
        values += b.call("forward", [values[-1], weight], [64], MICROSECOND)
    (loss,) = b.call("loss", [values[-1]], [256], MICROSECOND)
    (grad,) = b.call("loss backward", [values.pop()], [64], MICROSECOND)
    for weight in reversed(weights):
        value = values.pop()
        (new,) = b.call("backward", [grad, value, weight], [64], MICROSECOND)
        for tensor in (grad, value):
            b.release(tensor)
        grad = new
    for weight in weights:
        b.mutate("update", [weight], [0], MICROSECOND)
    b.release(loss)
    return b.build(held=[])


def test_what_a_write_needs_is_foreseen():
    """The loss is not used any more, but it is alive. So it is resident before the weights change."""
    trace = step_with_a_late_loss()
    found = _core.simulate_step(trace, budget=trace.peak_bytes * 60 // 100, alignment=ALIGNMENT, search_events=0)
    assert found is not None
    assert 0 < found["rematerialized_ns"] <= 0.4 * int(trace.nanoseconds.sum())


@pytest.mark.parametrize("policy", ["lru", "coop"])
def test_bytes_that_an_op_overwrites_and_reads_through_another_name(policy: str):
    """The op cannot run again: what it read is gone."""
    b = TraceBuilder()
    weight = b.constant(64)
    (filled,) = b.mutate("fill", [weight], [0], 1e-3)
    (added,) = b.mutate("add", [filled, weight], [0], 1e-3, overwritten=[0])
    (first,) = b.call("a", [added], [64], 1e-3)
    (second,) = b.call("b", [first], [64], 1e-3)
    (third,) = b.call("c", [second], [64], 1e-3)
    b.call("d", [third, added], [64], 1e-3)
    run = simulate(b.build(held=[]), budget=3 * 64, policy=policy, memory="arena")
    assert run.status == "ok"
    assert run.num_evictions > 0
