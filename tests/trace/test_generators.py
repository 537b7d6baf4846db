from __future__ import annotations

import doctest
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import remint.generators
import remint.trace.generators
from remint.generators import chain, random_dag, residual, rnn, tree, unet
from remint.trace import Trace
from remint.trace.events import Call, Constant, Event, Mark, Mutate, Release, View
from tests.support.trace_oracle import trace_facts

GENERATORS: list[Callable[..., Trace]] = [chain, residual, unet, tree, rnn, random_dag]
NETWORKS = [generator for generator in GENERATORS if generator is not chain]
every_generator = pytest.mark.parametrize("generator", GENERATORS)
every_network = pytest.mark.parametrize("generator", NETWORKS)


def kinds(trace: Trace) -> Counter[type[Event]]:
    return Counter(type(event) for event in trace.events())


def sources(trace: Trace) -> list[set[int]]:
    """Per tensor: itself and the tensors of the storages it was made from, all the way up."""
    ancestors: list[set[int]] = []
    for event in trace.events():
        if isinstance(event, Constant):
            ancestors.append({event.output})
        elif isinstance(event, Call | View | Mutate):
            for output in event.outputs:
                ancestors.append({output}.union(*(ancestors[tensor] for tensor in event.args)))
    return ancestors


# The chain, exactly


def test_chain() -> None:
    forward = [Call("forward", (i - 1,) if i else (), (i,), (1,), (-1,), 1.0) for i in range(4)]
    assert list(chain(4, nbytes=1, seconds=1.0).events()) == [
        *forward,
        Mark("backward"),
        Release(3),
        Call("backward", (), (4,), (1,), (-1,), 1.0),
        Release(2),
        Call("backward", (1, 4), (5,), (1,), (-1,), 1.0),
        Release(4),
        Release(1),
        Call("backward", (0, 5), (6,), (1,), (-1,), 1.0),
        Release(5),
        Release(0),
        Call("backward", (6,), (7,), (1,), (-1,), 1.0),
        Release(6),
    ]


@given(n=st.integers(1, 200))
def test_chain_is_a_unit_chain(n: int) -> None:
    trace = chain(n, nbytes=1, seconds=1.0)
    assert (trace.num_ops, trace.seconds, trace.num_tensors) == (2 * n, 2.0 * n, 2 * n)
    assert set(trace.nbytes.tolist()) == {1}
    assert trace.held.tolist() == [2 * n - 1]
    facts = trace_facts(trace)
    assert facts.peak_bytes == max(n, min(n, 2))
    assert facts.min_budget_bytes == min(n, 3)
    assert facts.constant_bytes == 0


@pytest.mark.slow
def test_long_chain() -> None:
    assert chain(100_000).num_ops == 200_000


# What holds for all


@every_generator
@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("nbytes", [1, 1000, 2**20])
def test_facts(generator: Callable[..., Trace], size: int, nbytes: int) -> None:
    trace = generator(size, nbytes=nbytes)
    facts = trace_facts(trace)
    assert facts.constant_bytes <= facts.min_budget_bytes <= facts.peak_bytes
    assert (trace.peak_bytes, trace.min_budget_bytes) == (facts.peak_bytes, facts.min_budget_bytes)
    assert trace.seconds > 0


@every_generator
def test_costs_and_sizes_scale(generator: Callable[..., Trace]) -> None:
    one, two = generator(4, nbytes=2**20, seconds=1.0), generator(4, nbytes=2**21, seconds=2.0)
    assert two.seconds == pytest.approx(2 * one.seconds)
    assert trace_facts(two).peak_bytes == pytest.approx(2 * trace_facts(one).peak_bytes, rel=1e-5)


@every_generator
def test_larger_steps_need_more(generator: Callable[..., Trace]) -> None:
    small, large = generator(3), generator(6)
    assert large.num_ops > small.num_ops
    assert trace_facts(large).peak_bytes > trace_facts(small).peak_bytes


@every_generator
def test_round_trip(tmp_path: Path, generator: Callable[..., Trace]) -> None:
    trace = generator(4)
    trace.save(tmp_path / "step.trace")
    assert Trace.load(tmp_path / "step.trace") == trace == generator(4)


@every_generator
def test_every_step_has_one_backward_pass(generator: Callable[..., Trace]) -> None:
    assert [event for event in generator(3).events() if isinstance(event, Mark)] == [Mark("backward")]


@every_generator
@pytest.mark.parametrize("size", [0, -1])
def test_no_size(generator: Callable[..., Trace], size: int) -> None:
    with pytest.raises(ValueError, match=f"must be at least 1, not {size}"):
        generator(size)


# What holds for networks with weights


@every_network
@pytest.mark.parametrize("size", [1, 3, 6])
def test_what_is_held(generator: Callable[..., Trace], size: int) -> None:
    """The constants, the loss, and one gradient per weight that had a part in the loss; nothing else."""
    trace = generator(size)
    events = list(trace.events())
    constants = {event.output: event.name for event in events if isinstance(event, Constant)}
    assert list(constants) == list(range(len(constants))), "constants come first"
    (loss,) = next(e.outputs for e in events if isinstance(e, Call) and e.name == "cross_entropy")
    weights = {tensor for tensor, name in constants.items() if name == "weight"}
    ancestors = sources(trace)
    used = weights & ancestors[loss]
    gradients = set(trace.held.tolist()) - set(constants) - {loss}
    assert set(constants) | {loss} <= set(trace.held.tolist())
    assert len(gradients) == len(used)
    assert sorted(trace.nbytes[sorted(gradients)]) == sorted(trace.nbytes[sorted(used)])
    # All of it comes back from the loss: made after it, from what the first gradient led to.
    (first,) = next(e.outputs for e in events if isinstance(e, Call) and e.name == "ones_like")
    assert all(first in ancestors[gradient] for gradient in gradients)


@every_network
def test_nothing_is_kept_longer_than_needed(generator: Callable[..., Trace]) -> None:
    """On the way back a tensor is released before the op after its last use has ended."""
    trace = generator(4)
    last_use: dict[int, int] = {}
    ops = 0
    released: dict[int, int] = {}  # in the backward pass
    for event in trace.events():
        if isinstance(event, Mark):
            released.clear()
        elif isinstance(event, Release):
            released[event.tensor] = ops
        elif isinstance(event, Call | View | Mutate):
            ops += 1
            last_use.update(dict.fromkeys((*event.args, *event.outputs), ops))
    assert released
    # In a random network some tensors are saved by ops that the loss does not depend on.
    if generator is not random_dag:
        assert all(when - last_use[tensor] <= 1 for tensor, when in released.items())


@every_network
def test_variety(generator: Callable[..., Trace]) -> None:
    trace = generator({random_dag: 100}.get(generator, 8))
    count = kinds(trace)
    assert min(count[View], count[Mutate], count[Constant]) > 0
    calls = [event for event in trace.events() if isinstance(event, Call)]
    assert any(len(call.outputs) > 1 for call in calls)
    costs = [call.seconds for call in calls if call.seconds]
    assert max(costs) > 10 * min(costs)
    assert len(set(trace.nbytes.tolist())) > 3


@every_network
def test_budgets_matter(generator: Callable[..., Trace]) -> None:
    """There is room between what a step needs without a budget and what it cannot do without."""
    facts = trace_facts(generator({rnn: 20, random_dag: 100}.get(generator, 6)))
    assert facts.min_budget_bytes < 0.35 * facts.peak_bytes


def test_residual_is_in_place() -> None:
    names = Counter(e.name for e in residual(6).events() if isinstance(e, Mutate))
    assert names["relu_"] == 12
    assert names["add_"] >= 6


def test_unet_skips_live_long() -> None:
    trace = unet(3)
    joins = [event for event in trace.events() if isinstance(event, Call) and event.name == "cat"]
    assert len(joins) == 3
    skips = [event.args[0] for event in joins]
    assert skips == sorted(skips, reverse=True)


def test_tree_has_all_its_nodes() -> None:
    cells = [event for event in tree(4).events() if isinstance(event, Call) and event.name == "lstm_cell"]
    assert len(cells) == 2**5 - 1


def test_rnn_adds_its_gradients_up() -> None:
    steps = 7
    adds = [event for event in rnn(steps).events() if isinstance(event, Mutate) and event.name == "add_"]
    assert len(adds) == steps - 1


def test_seeds() -> None:
    assert random_dag(50, seed=3) == random_dag(50, seed=3)
    assert random_dag(50, seed=3) != random_dag(50, seed=4)


@given(n=st.integers(1, 60), seed=st.integers(0, 10**6))
def test_random_dags(n: int, seed: int) -> None:
    trace = random_dag(n, seed=seed)
    forward = [type(event) for event in trace.events()]
    forward = forward[: forward.index(Mark)]
    # The stem, n ops, their sum, and the four ops of the head.
    assert sum(kind in (Call, View, Mutate) for kind in forward) == n + 6
    facts = trace_facts(trace)
    assert facts.min_budget_bytes <= facts.peak_bytes


def test_doctests() -> None:
    assert doctest.testmod(remint.trace.generators).failed == 0
