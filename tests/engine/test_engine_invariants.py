"""What holds for every run, whatever the policy: checked from the outside, on random programs."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import remint
from remint import _core, generators
from remint.trace import Trace, TraceBuilder
from tests.support.event_checker import EventChecker, needed_values
from tests.support.examples import examples
from tests.support.random_programs import random_program
from tests.support.trace_strategies import traces

pytestmark = pytest.mark.core

DEALLOCATIONS = ("ignore", "eager", "banish")
KINDS_OF_MEMORY = [("ideal", "copy"), ("arena", "copy"), ("arena", "ghost")]
ALL = [(policy, *kind) for kind in KINDS_OF_MEMORY for policy in remint.policy_names(kind[0])]
ANY_HEALTH = list(HealthCheck)

programs = st.builds(
    random_program,
    st.integers(0, 2**32),
    st.integers(1, 60),
    views=st.sampled_from([0.0, 0.1, 0.3]),
    mutations=st.sampled_from([0.0, 0.1, 0.4]),
    wide_views=st.booleans(),
)


def budget_for(trace: Trace, memory: str, tightness: float) -> int:
    lowest = trace.min_budget_bytes
    budget = lowest + int((trace.peak_bytes - lowest) * (1 - tightness) ** 2)
    # Blocks of the arena are multiples of 64 bytes.
    return budget * 16 if memory == "arena" else budget


def check_run(trace: Trace, *, memory: str, inplace: str, budget: int, **options) -> remint.Run:
    run = remint.simulate(trace, memory=memory, inplace=inplace, budget=budget, events=True, check=True, **options)
    checker = EventChecker(trace, ghosts=inplace == "ghost")
    # On the arena, and with banishing, records die, and the siblings of what runs again with them.
    counts_all = memory == "ideal" and run.deallocation != "banish"
    checker.replay(run.events, budget=budget if counts_all else None)
    assert run.peak_bytes <= run.budget_bytes
    assert (run.status == "ok") == (run.failure is None)
    if run.status == "ok":
        assert checker.num_computed == len(checker.program)
        assert all(checker.values[tensor].defined for tensor in trace.held) or inplace == "ghost"
    # Where ops write in place, what was made from bytes that are about to be overwritten is made before it is needed.
    if inplace == "copy":
        rematerialized = {int(event[1:]) for event in run.events if event[0] == "R"}
        assert rematerialized <= needed_values(checker, trace)
    return run


@pytest.mark.parametrize(("policy", "memory", "inplace"), ALL)
@examples(40, suppress_health_check=ANY_HEALTH)
@given(
    trace=programs,
    tightness=st.floats(0, 1),
    deallocation=st.sampled_from(DEALLOCATIONS),
    max_slowdown=st.sampled_from([1.5, 3.0]),
)
def test_every_read_finds_its_value(policy, memory, inplace, trace, tightness, deallocation, max_slowdown):
    check_run(
        trace,
        policy=policy,
        memory=memory,
        inplace=inplace,
        budget=budget_for(trace, memory, tightness),
        deallocation=deallocation,
        max_slowdown=max_slowdown,
    )


@examples(120, suppress_health_check=ANY_HEALTH)
@given(
    trace=traces(),
    tightness=st.floats(0, 1),
    choice=st.sampled_from(ALL),
    deallocation=st.sampled_from(DEALLOCATIONS),
    ignore_small=st.sampled_from([0.0, 0.5, 1.0]),
    sample=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
    partition=st.none() | st.booleans(),
    moving=st.none() | st.booleans(),
)
def test_every_option_keeps_a_run_valid(trace, tightness, choice, **options):
    policy, memory, inplace = choice
    budget = budget_for(trace, memory, tightness)
    first, second = (
        check_run(trace, policy=policy, memory=memory, inplace=inplace, budget=budget, **options) for _ in range(2)
    )
    assert first == second


@pytest.mark.parametrize("policy", remint.policy_names("arena"))
@examples(8, suppress_health_check=ANY_HEALTH)
@given(
    seed=st.integers(0, 2**32),
    tightness=st.floats(0, 1),
    deallocation=st.sampled_from(DEALLOCATIONS),
    ghosts=st.booleans(),
)
def test_no_two_live_blocks_overlap(policy, seed, tightness, deallocation, ghosts):
    trace = random_program(seed, 30, mutations=0.3)
    budget = budget_for(trace, "arena", tightness) // 64 * 64
    simulation = _core.Simulation(
        budget=budget,
        arena=True,
        events=True,
        policy=policy,
        deallocation=deallocation,
        ghosts=ghosts,
        partition=policy == "coop",
        moving=policy == "coop",
    )
    released: set[int] = set()
    for prefix in prefixes(trace):
        if simulation.advance(prefix, finish=False) != "ok":
            return
        blocks = sorted(simulation.blocks())
        ends = [0] + [address + nbytes for address, nbytes, _ in blocks]
        assert all(address >= end for (address, _, _), end in zip(blocks, ends, strict=False))
        assert ends[-1] <= budget
        assert sum(nbytes for _, nbytes, _ in blocks) == simulation.statistics()["used_bytes"]
        kind, (first, last) = prefix.kinds[-1], prefix.arg_offsets[-2:]
        if kind == 4:
            released.update(prefix.args[first:last].tolist())
        roots = {tensor for _, _, tensor in blocks}
        assert len(roots) == len(blocks)
        held = [tensor for tensor in range(prefix.num_tensors) if tensor not in released]
        if not ghosts:
            for tensor in held:
                assert simulation.is_resident(tensor) == (storage_of(trace, tensor) in roots)


def prefixes(trace: Trace) -> list[Trace]:
    """The trace after each of its events."""
    fields = {name: getattr(trace, name) for name in trace.__dataclass_fields__}
    result = []
    for end in range(1, trace.num_events + 1):
        num_tensors = int(trace.out_offsets[end])
        cut = {
            "kinds": end,
            "nanoseconds": end,
            "name_ids": end,
            "source_ids": end,
            "arg_offsets": end + 1,
            "out_offsets": end + 1,
            "request_offsets": end + 1,
            "args": int(trace.arg_offsets[end]),
            "nbytes": num_tensors,
            "aliases": num_tensors,
            "held": 0,
        }
        result.append(Trace(**{**fields, **{name: fields[name][:length].copy() for name, length in cut.items()}}))
    return result


def storage_of(trace: Trace, tensor: int) -> int:
    """The root of the tensor's storage where ops in place make a fresh one."""
    while trace.aliases[tensor] >= 0:
        event = int((trace.out_offsets > tensor).argmax()) - 1
        if trace.kinds[event] == 3:
            break
        tensor = int(trace.args[trace.arg_offsets[event] + trace.aliases[tensor]])
    return tensor


@pytest.mark.parametrize("ghosts", [False, True])
@pytest.mark.parametrize("policy", remint.policy_names("arena"))
def test_releases_return_memory(policy, ghosts):
    for seed in range(15):
        trace = random_program(seed, 40, mutations=0.2)
        released = {int(trace.args[trace.arg_offsets[e]]) for e in range(len(trace)) if trace.kinds[e] == 4}
        builder = rebuild(trace)
        for tensor in set(range(trace.num_tensors)) - released:
            builder.release(tensor)
        trace = builder.build()
        simulation = _core.Simulation(budget=trace.peak_bytes * 16, arena=True, policy=policy, ghosts=ghosts)
        if simulation.advance(trace, finish=True) == "ok":
            figures = simulation.statistics()
            assert figures["used_bytes"] == figures["pinned_bytes"] == figures["num_storages"] == 0


def rebuild(trace: Trace) -> TraceBuilder:
    builder = TraceBuilder()
    for event in trace.events():
        match type(event).__name__:
            case "Constant":
                builder.constant(event.nbytes)
            case "Call":
                builder.call(event.name, event.args, event.nbytes, event.seconds, aliases=event.aliases)
            case "View":
                sizes = [0] * len(event.outputs)
                builder.call(event.name, event.args, sizes, event.seconds, aliases=event.aliases)
            case "Mutate":
                builder.mutate(event.name, event.args, event.mutated, event.seconds)
            case "Release":
                builder.release(event.tensor)
    return builder


@pytest.mark.parametrize("policy", remint.policy_names("arena"))
@pytest.mark.parametrize("deallocation", ["eager", "banish"])
def test_dead_records_are_dropped(policy, deallocation):
    """The tables of a run do not grow with the number of steps, unless releases are ignored."""
    builder = TraceBuilder()
    weight = builder.constant(640)
    counts = []
    simulation = _core.Simulation(budget=64 * 32, arena=True, policy=policy, ghosts=True, deallocation=deallocation)
    for _ in range(60):
        activations = [*builder.call("forward", [weight], [64], 1e-6)]
        for _ in range(12):
            activations += builder.call("forward", activations[-1:], [64, 64], 1e-6)
        (gradient,) = builder.call("loss", activations[-1:], [64], 1e-6)
        for activation in reversed(activations):
            (following,) = builder.call("backward", [activation, gradient], [64], 1e-6)
            builder.release(activation)
            builder.release(gradient)
            gradient = following
        (written,) = builder.mutate("add_", [weight, gradient], [0], 1e-6)
        builder.release(weight)
        builder.release(gradient)
        weight = written
        assert simulation.advance(builder.build(), finish=False) == "ok"
        counts.append(simulation.statistics()["num_storages"])
    assert max(counts[30:]) <= max(counts[:30])
    assert simulation.statistics()["num_evictions"] > 0


@pytest.mark.parametrize(("policy", "memory", "inplace"), ALL)
def test_no_pressure_no_work(policy, memory, inplace):
    for seed in range(10):
        trace = random_program(seed, 50)
        # Constants that were released stay on ideal memory, as in DTR's reference.
        budget = 64 * (trace.num_tensors + trace.peak_bytes + trace.constant_bytes)
        run = check_run(trace, policy=policy, memory=memory, inplace=inplace, budget=budget, max_slowdown=1.0)
        assert run.status == "ok"
        assert (run.num_searches, run.num_rematerializations, run.slowdown) == (0, 0, 1.0)


@examples(60, suppress_health_check=ANY_HEALTH)
@given(trace=traces(), policy=st.sampled_from(remint.policy_names("ideal")))
def test_the_peak_is_enough_on_ideal_memory(trace, policy):
    run = remint.simulate(trace, budget=trace.peak_bytes + trace.constant_bytes, policy=policy)
    assert run.status == "ok"


@pytest.mark.parametrize(("policy", "memory", "inplace"), ALL)
@pytest.mark.parametrize("deallocation", DEALLOCATIONS)
def test_no_memory_is_a_result(policy, memory, inplace, deallocation):
    trace = random_program(3, 30)
    for budget in {0, 1, 63, trace.min_budget_bytes - 1} & set(range(trace.min_budget_bytes)):
        run = remint.simulate(
            trace, budget=budget, policy=policy, memory=memory, inplace=inplace, deallocation=deallocation
        )
        assert run.status == "oom"
        assert "do not fit" in run.failure


# Corner cases, by hand, on all policies and memories.


def zero_outputs() -> Trace:
    builder = TraceBuilder()
    (a,) = builder.call("a", [], [64], 1e-6)
    (b,) = builder.call("b", [a], [64], 1e-6)
    (c,) = builder.call("c", [b], [64], 1e-6)
    builder.call("print", [a, a], [], 1e-6)
    builder.call("print", [], [], 1e-6)
    builder.call("print", [c, b], [], 1e-6)
    return builder.build([c])


def zero_bytes_and_costs() -> Trace:
    builder = TraceBuilder()
    x = builder.constant(0)
    for _ in range(10):
        (x, y) = builder.call("op", [x], [0, 64], 0.0)
        builder.view("view", y)
    return builder.build([x, y])


def inplace_chain() -> Trace:
    """Older values are read again through what was made from them, after all was written over."""
    builder = TraceBuilder()
    weight = builder.constant(64)
    (x,) = builder.call("conv", [weight], [64], 1e-6)
    made = []
    for _ in range(6):
        made += builder.call("read", [x], [64], 1e-6)
        (following,) = builder.mutate("add_", [x], [0], 1e-6)
        builder.release(x)
        x = following
    for value in reversed(made):
        builder.call("use", [value, x], [64], 1e-6)
    return builder.build([x])


def mutated_constant() -> Trace:
    """What was computed from a constant before it was written may never be computed from what it is now."""
    builder = TraceBuilder()
    weight = builder.constant(64)
    (a,) = builder.call("a", [weight], [64], 1e-6)
    (b,) = builder.call("b", [a], [64], 1e-6)
    (c,) = builder.call("c", [b], [64], 1e-6)
    (written,) = builder.mutate("step_", [weight, c], [0], 1e-6)
    builder.release(weight)
    (d,) = builder.call("d", [written, a], [64], 1e-6)
    (written,) = builder.mutate("step_", [written, d], [0], 1e-6)
    builder.call("e", [a, b, c], [64], 1e-6)
    return builder.build([written])


def mutated_view() -> Trace:
    builder = TraceBuilder()
    (x,) = builder.call("x", [], [64], 1e-6)
    view = builder.view("view", x, 1e-6)
    (y,) = builder.call("y", [view], [64], 1e-6)
    (z,) = builder.mutate("add_", [view, y], [0], 1e-6)
    other = builder.view("view", z, 1e-6)
    builder.call("use", [x, view, other], [64], 1e-6)
    builder.call("use", [y], [64], 1e-6)
    return builder.build([x, other])


def written_twice() -> Trace:
    builder = TraceBuilder()
    (x,) = builder.call("x", [], [64], 1e-6)
    view = builder.view("view", x)
    (a, b) = builder.mutate("swap_", [x, view], [0, 1], 1e-6)
    (c, d) = builder.mutate("swap_", [a, a, b], [1, 0], 1e-6)
    for _ in range(4):
        builder.call("use", [d, c, x], [64], 1e-6)
    return builder.build([c])


CORNERS = [zero_outputs, zero_bytes_and_costs, inplace_chain, mutated_constant, mutated_view, written_twice]


@pytest.mark.parametrize("make", CORNERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize(("policy", "memory", "inplace"), ALL)
def test_corner_cases(policy, memory, inplace, make):
    trace = make()
    statuses = set()
    for deallocation in DEALLOCATIONS:
        for budget in range(0, 64 * 24, 64):
            run = check_run(
                trace,
                policy=policy,
                memory=memory,
                inplace=inplace,
                budget=budget,
                deallocation=deallocation,
                max_slowdown=20.0,
            )
            statuses.add(run.status)
    assert statuses >= {"ok"}
    assert run.status == "ok"


@pytest.mark.parametrize(("policy", "memory", "inplace"), ALL)
def test_huge_sizes(policy, memory, inplace):
    builder = TraceBuilder()
    x = ()
    for _ in range(6):
        x = builder.call("op", x, [2**60], 1e-6)
    trace = builder.build()
    for budget in (2**60 - 1, 2**60, 2**61, 2**62, 2**63 - 1):
        run = check_run(trace, policy=policy, memory=memory, inplace=inplace, budget=budget, max_slowdown=100.0)
        assert run.peak_bytes <= budget


def test_a_constant_larger_than_the_budget():
    builder = TraceBuilder()
    builder.constant(1000)
    for policy, memory, inplace in ALL:
        run = remint.simulate(builder.build(), budget=999, policy=policy, memory=memory, inplace=inplace)
        assert (run.status, run.num_ops) == ("oom", 0)


def test_thrash_is_a_result():
    run = remint.simulate(generators.chain(256, nbytes=1), budget=4, policy="lru")
    assert run.status == "thrash"
    assert "max_slowdown" in run.failure
    assert run.slowdown > 2


@pytest.mark.parametrize("policy", ["random", "dtr-eq"])
def test_seeds_matter_and_repeat(policy):
    trace = random_program(5, 200)
    rng = random.Random(0)
    runs = [
        remint.simulate(trace, budget="60%", policy=policy, sample=True, seed=seed, max_slowdown=9, events=True)
        for seed in [rng.randrange(2**64) for _ in range(5)] * 2
    ]
    assert runs[:5] == runs[5:]
    assert len({run.decision_sha256 for run in runs}) > 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "belady"}, "no policy 'belady'; the policies are dtr, dtr-eq"),
        ({"policy": "coop"}, "policy 'coop' chooses by address and needs memory='arena'"),
        ({"policy": "dte", "memory": "ideal"}, "needs memory='arena'"),
        ({"memory": "cloud"}, "memory is one of 'ideal', 'arena', not 'cloud'"),
        ({"deallocation": "never"}, "deallocation is one of 'ignore', 'lazy', 'eager', 'banish'"),
        ({"inplace": "ghost"}, "inplace='ghost' needs memory='arena'"),
        ({"inplace": "maybe", "memory": "arena"}, "inplace is one of"),
        ({"max_slowdown": 0.5}, "max_slowdown is 1 or more"),
        ({"max_slowdown": float("nan")}, "max_slowdown is 1 or more"),
        ({"ignore_small": 2.0}, "ignore_small is a fraction"),
        ({"ignore_small": -1.0}, "ignore_small is a fraction"),
    ],
)
def test_bad_options_are_explained(options, message):
    with pytest.raises(ValueError, match=message):
        remint.simulate(generators.chain(4), budget="50%", **options)
