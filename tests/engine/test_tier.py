"""The tier below the memory: what is offloaded, fetched and given up, on random programs and by hand."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import remint
from remint import Offload, _core, generators
from remint.trace import Trace, TraceBuilder
from tests.support.event_checker import EventChecker
from tests.support.examples import examples
from tests.support.op_by_op import Driver
from tests.support.random_programs import random_program
from tests.support.trace_strategies import steps, traces

pytestmark = pytest.mark.core

POLICIES = remint.policy_names("arena")
ANY_HEALTH = list(HealthCheck)
PLENTY = 1 << 40

programs = st.builds(
    random_program,
    st.integers(0, 2**32),
    st.integers(1, 60),
    views=st.sampled_from([0.0, 0.1, 0.3]),
    mutations=st.sampled_from([0.0, 0.1, 0.4]),
    wide_views=st.booleans(),
)


def run_with_tier(trace: Trace, *, budget: int, tier: int, bandwidth: float, inplace: str = "ghost", **options):
    """Simulate with a tier that takes exactly the bytes of its copies, and check every event against the trace."""
    run = remint.simulate(
        trace,
        budget=budget,
        memory="arena",
        inplace=inplace,
        offload=Offload(bytes=tier, bandwidth=bandwidth, latency=0),
        events=True,
        check=True,
        **options,
    )
    checker = EventChecker(trace, ghosts=inplace == "ghost")
    checker.replay(run.events)
    kinds = [event[0] for event in run.events]
    assert run.num_offloads + run.num_clean_offloads == kinds.count("O")
    assert run.num_fetches == kinds.count("F")
    assert run.peak_bytes <= run.budget_bytes
    assert run.offload_peak_bytes <= tier
    return run


@pytest.mark.parametrize("policy", POLICIES)
@examples(40, suppress_health_check=ANY_HEALTH)
@given(
    trace=programs,
    tightness=st.floats(0, 1),
    deallocation=st.sampled_from(["ignore", "eager", "banish"]),
    inplace=st.sampled_from(["copy", "ghost"]),
    tier=st.sampled_from([4096, 40960, PLENTY]),
    bandwidth=st.sampled_from([1e6, 1e9, 1e15]),
)
def test_every_read_finds_its_value(policy, trace, tightness, deallocation, inplace, tier, bandwidth):
    lowest = trace.min_budget_bytes
    budget = 16 * (lowest + int((trace.peak_bytes - lowest) * (1 - tightness) ** 2))
    run_with_tier(
        trace, budget=budget, tier=tier, bandwidth=bandwidth, policy=policy, deallocation=deallocation, inplace=inplace
    )


@examples(150, suppress_health_check=ANY_HEALTH)
@given(
    trace=traces(),
    policy=st.sampled_from(POLICIES),
    budget=st.integers(64, 16000),
    tier=st.sampled_from([4096, 40960, PLENTY]),
    bandwidth=st.sampled_from([1e3, 1e9, 1e15]),
    deallocation=st.sampled_from(["ignore", "lazy", "eager", "banish"]),
)
def test_any_trace(trace, policy, budget, tier, bandwidth, deallocation):
    run_with_tier(trace, budget=budget, tier=tier, bandwidth=bandwidth, policy=policy, deallocation=deallocation)


@examples(150, suppress_health_check=ANY_HEALTH)
@given(
    trace=steps(),
    policy=st.sampled_from(POLICIES),
    budget=st.integers(64, 16000),
    tier=st.sampled_from([4096, 40960, PLENTY]),
    bandwidth=st.sampled_from([1e3, 1e9, 1e15]),
)
def test_steps_keep_the_books(trace, policy, budget, tier, bandwidth):
    """Raw memory, ops in place and what is made once: `check` looks at the books after every event."""
    run = remint.simulate(
        trace,
        budget=budget,
        memory="arena",
        policy=policy,
        offload=Offload(bytes=tier, bandwidth=bandwidth),
        check=True,
    )
    assert run.peak_bytes <= budget
    assert run.offload_peak_bytes <= tier


@pytest.mark.parametrize("offload", [None, Offload(bytes=PLENTY, bandwidth=1e15)], ids=["no tier", "tier"])
@pytest.mark.parametrize("policy", POLICIES)
def test_what_an_op_made_of_a_constant_elsewhere_is_no_candidate(policy, offload):
    """It has a recipe, but no block: to evict it frees nothing, and there are no bytes to offload."""
    builder = TraceBuilder()
    builder.mutate("fill", [builder.constant(640, where="elsewhere")], [0], 1e-9, overwritten=[0])
    made = [builder.call("call", [], [64], 1e-3)[0] for _ in range(4)]
    for tensor in made[:-1]:
        builder.release(tensor)
    run = remint.simulate(
        builder.build(), budget=128, memory="arena", policy=policy, offload=offload, check=True, events=True
    )
    assert run.status == "ok"
    assert run.num_evictions + run.num_offloads >= 2
    left = {event[1:] for event in run.events if event[0] in "EO"}
    assert left <= {"2", "3", "4", "5"}


def largest_op(trace: Trace) -> int:
    """Return the bytes that the op with the most of them needs at once, by the events alone."""
    checker = EventChecker(trace, ghosts=True)
    ops = [[*value.inputs, *value.outputs] for value in checker.values.values()]
    return max(sum({each.storage: -(-each.storage.nbytes // 64) * 64 for each in op}.values()) for op in ops if op)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "trace",
    [generators.chain(40), generators.residual(4), generators.unet(2), generators.rnn(8), generators.tree(3)],
    ids=["chain", "residual", "unet", "rnn", "tree"],
)
def test_a_tier_makes_every_budget_possible_that_holds_each_op(trace, policy):
    """Where all can leave and come back, only one op's own bytes have to fit at once."""
    run = remint.simulate(
        trace,
        budget=4 * largest_op(trace),
        memory="arena",
        policy=policy,
        offload=Offload(bytes=PLENTY, bandwidth=1e15, latency=0),
        max_slowdown=1e9,
        check=True,
    )
    assert run.status == "ok", run.failure


@pytest.mark.parametrize("bandwidth", [0.25, 4.0])
@pytest.mark.parametrize("trace", [generators.residual(8), generators.rnn(12)], ids=["residual", "rnn"])
@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_recomputes_without_end_where_a_tier_has_room(policy, trace, bandwidth):
    """Also those whose scores count no neighbours: the way of a value depends on what is evicted around it."""
    run = remint.simulate(
        trace,
        budget="25%",
        memory="arena",
        policy=policy,
        max_slowdown=1e3,
        offload=Offload(bytes=PLENTY, bandwidth=bandwidth * trace.peak_bytes / trace.seconds, latency=0),
    )
    assert run.status == "ok", run.failure


def constants_and_ops(num: int = 8, nbytes: int = 4096) -> Trace:
    """A program full of what no recipe makes: every constant is read twice, far apart."""
    builder = TraceBuilder()
    constants = [builder.constant(nbytes) for _ in range(num)]
    for _ in range(2):
        for constant in constants:
            (out,) = builder.call("read", [constant], [nbytes], 1e-3)
            builder.release(out)
    return builder.build(constants)


@pytest.mark.parametrize("policy", POLICIES)
def test_constants_leave_and_come_back(policy):
    trace = constants_and_ops()
    budget = 4 * 4096
    assert remint.simulate(trace, budget=budget, memory="arena", policy=policy).status == "oom"
    run = run_with_tier(trace, budget=budget, tier=PLENTY, bandwidth=1e9, policy=policy)
    assert run.status == "ok"
    assert run.num_fetches > 0
    # Each is copied once: it never changes, so the second time its copy is still good.
    assert run.num_offloads <= 8
    assert run.num_clean_offloads > 0
    assert run.offloaded_bytes == run.num_offloads * 4096
    assert run.fetched_bytes == run.num_fetches * 4096


def test_a_full_tier_is_an_oom_and_one_that_holds_them_is_not():
    trace = constants_and_ops()
    budget = 4 * 4096
    # Nine tensors of a page are there at once (the output of an op, too), and four are in memory.
    statuses = {
        pages: remint.simulate(
            trace, budget=budget, memory="arena", policy="lru", offload=Offload(bytes=pages * 4096)
        ).status
        for pages in range(1, 8)
    }
    assert statuses[4] == "oom"
    assert statuses[5] == statuses[7] == "ok"


@pytest.mark.parametrize("pages", [2, 3])
@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "clairvoyant"])
def test_a_window_of_pinned_values_that_the_tier_has_no_room_for_loses_none(policy, pages):
    """Each of them alone could leave, and not all of them."""
    driver = Driver(4 * 4096, tier_bytes=pages * 4096, tier_bandwidth=1e9, policy=policy)
    constants = [driver.builder.constant(4096) for _ in range(4)]
    driver.advance()
    driver.builder.call("wants most of it", [], [4096 * 3], 1e-3)
    status = driver.simulation.advance(driver.builder.build(), finish=False)
    assert status == ("ok" if pages == 3 else "oom")
    driver.simulation.check()
    if pages == 3:
        return
    for constant in constants:
        driver.simulation.materialize(constant)
        assert driver.simulation.is_resident(constant)


def test_transfers_take_the_time_that_the_bandwidth_says():
    trace = constants_and_ops()
    run = remint.simulate(
        trace,
        budget=4 * 4096,
        memory="arena",
        policy="lru",
        max_slowdown=1e9,
        offload=Offload(bytes=PLENTY, bandwidth=4096e3, latency=1e-4),
    )
    transfers = run.num_offloads + run.num_fetches
    assert run.transfer_seconds == pytest.approx(transfers * (1e-3 + 1e-4))
    assert run.slowdown == pytest.approx(1 + run.transfer_seconds / run.computed_seconds)


@pytest.mark.parametrize(("bandwidth", "way"), [(1e15, "O"), (1.0, "E")])
@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "clairvoyant"])
def test_a_value_leaves_on_the_way_that_brings_it_back_sooner(policy, bandwidth, way):
    builder = TraceBuilder()
    x = builder.constant(64)
    for _ in range(8):
        builder.call("f", [x], [4096], 1e-3)
    run = remint.simulate(
        builder.build([]),
        budget=64 + 5 * 4096,
        memory="arena",
        policy=policy,
        events=True,
        max_slowdown=1e9,
        offload=Offload(bytes=PLENTY, bandwidth=bandwidth, latency=0),
    )
    left = {event[0] for event in run.events if event[0] in "EO"}
    assert left == {way}
    assert run.num_rematerializations == 0 or way == "E"


def test_recomputation_ends_at_what_the_tier_has():
    """A long chain: with its middle offloaded, the end is recomputed from there."""
    driver = Driver(64 * 64, tier_bytes=PLENTY, tier_bandwidth=1e15, tier_alignment=64)
    (at,) = driver.call([], [64])
    chain = [at]
    for _ in range(10):
        chain += driver.call(chain[-1:], [64])
    simulation = driver.simulation
    # The fifth leaves for the tier: fetching is free there, and running its op is not.
    assert simulation.evict(chain[5])
    assert simulation.statistics()["num_offloads"] == 1
    for tensor in chain:
        driver.simulation.evict(tensor)
    before = simulation.statistics()["num_rematerializations"]
    driver.simulation.materialize(chain[6])
    after = simulation.statistics()
    assert after["num_rematerializations"] == before
    assert after["num_fetches"] >= 1


def tiered(budget: int, **options: object) -> Driver:
    return Driver(budget, tier_bytes=PLENTY, tier_bandwidth=1e15, tier_alignment=64, **options)


def test_a_write_makes_the_copy_stale():
    driver = tiered(64 * 8)
    weight = driver.builder.constant(64)
    driver.advance()
    simulation = driver.simulation
    assert simulation.evict(weight)
    simulation.materialize(weight)
    assert simulation.evict(weight)  # nothing changed: the copy is still good
    assert simulation.statistics()["num_clean_offloads"] == 1
    simulation.materialize(weight)
    simulation.before_write(weight)
    assert simulation.evict(weight)
    assert simulation.statistics()["num_clean_offloads"] == 1
    assert simulation.statistics()["num_offloads"] == 2
    driver.simulation.check()


def test_an_op_in_place_makes_the_copy_stale():
    driver = tiered(64 * 8)
    weight = driver.builder.constant(64)
    driver.advance()
    assert driver.simulation.evict(weight)
    (written,) = driver.mutate([weight], [0])
    assert driver.simulation.statistics()["num_fetches"] == 1
    assert driver.simulation.evict(written)
    figures = driver.simulation.statistics()
    assert (figures["num_offloads"], figures["num_clean_offloads"]) == (2, 0)


def test_what_was_made_from_an_offloaded_constant_survives_its_write():
    driver = tiered(64 * 8)
    weight = driver.builder.constant(64)
    driver.advance()
    (made,) = driver.call([weight], [64])
    driver.simulation.evict(made)
    driver.simulation.evict(weight)
    driver.mutate([weight], [0])
    assert driver.simulation.is_pinned(made)
    before = driver.simulation.statistics()["num_rematerializations"]
    driver.call([made], [64])
    assert driver.simulation.statistics()["num_rematerializations"] == before


def test_what_is_locked_or_fixed_stays():
    driver = tiered(64 * 8)
    weight = driver.builder.constant(64)
    fixed = driver.builder.constant(64)
    driver.builder.pin(fixed, fixed=True)
    driver.advance()
    locked = driver.simulation.lock_for_read(weight)
    assert not driver.simulation.evict(weight)
    assert not driver.simulation.evict(fixed)
    driver.simulation.unlock_for_read(locked)
    assert driver.simulation.evict(weight)
    driver.simulation.check()


def test_a_read_lock_of_an_offloaded_value_fetches_it():
    driver = tiered(64 * 8)
    weight = driver.builder.constant(64)
    driver.advance()
    assert driver.simulation.evict(weight)
    locked = driver.simulation.lock_for_read(weight)
    assert driver.simulation.is_resident(weight)
    driver.simulation.unlock_for_read(locked)


def test_a_release_frees_the_copy():
    driver = tiered(64 * 8)
    weight = driver.builder.constant(64)
    driver.advance()
    (made,) = driver.call([weight], [64])
    assert driver.simulation.evict(weight)
    assert driver.simulation.evict(made)
    driver.release(made)
    driver.release(weight)
    # The books of the tier are checked: what it holds is what storages say.
    driver.simulation.check()
    figures = driver.simulation.statistics()
    assert figures["used_bytes"] == figures["pinned_bytes"] == 0


def test_requests_inside_of_a_kernel_fetch():
    driver = tiered(64 * 8)
    weight = driver.builder.constant(64)
    driver.advance()
    assert driver.simulation.evict(weight)
    (x,) = driver.call([], [64])
    driver.call([x], [64], inside=lambda: driver.simulation.materialize(weight))
    assert driver.simulation.statistics()["num_fetches"] == 1


def test_a_pin_inside_of_a_kernel_keeps_a_tiered_value_until_the_op_ends():
    driver = tiered(64 * 8)
    weight = driver.builder.constant(64)
    driver.advance()
    (x,) = driver.call([], [64])
    left: list[bool] = []

    def inside() -> None:
        driver.simulation.pin(weight)
        left.append(driver.simulation.evict(weight))

    driver.call([x], [64], inside=inside)
    assert left == [False]
    assert driver.simulation.evict(weight)


def test_ideal_memory_has_no_tier():
    with pytest.raises(ValueError, match="needs memory='arena'"):
        remint.simulate(generators.chain(4), budget="50%", offload="1GiB")
    with pytest.raises(ValueError, match="needs an arena"):
        _core.Simulation(budget=100, policy="lru", tier_bytes=100)


@pytest.mark.parametrize("seed", range(20))
def test_requests_at_random(seed):
    """Evictions, pins, locks and writes between and inside of ops, with all that can be in the tier."""
    rng = random.Random(seed)
    policy = rng.choice([policy for policy in POLICIES if policy != "clairvoyant"])
    driver = tiered(64 * 40, policy=policy)
    live = [driver.builder.constant(64 * rng.randint(1, 3)) for _ in range(4)]
    driver.advance()
    locks: list[int] = []
    simulation = driver.simulation

    def request() -> None:
        tensor = rng.choice(live)
        what = rng.choice(["evict", "evict", "evict", "materialize", "lock", "unlock", "write"])
        if what == "evict":
            simulation.evict(tensor)
        elif what == "materialize":
            simulation.materialize(tensor)
        elif what == "lock" and len(locks) < 3:
            locks.append(simulation.lock_for_read(tensor))
        elif what == "unlock" and locks:
            simulation.unlock_for_read(locks.pop())
        elif what == "write" and simulation.is_pinned(tensor):
            simulation.before_write(tensor)

    for _ in range(120):
        for _ in range(3):
            with contextlib.suppress(RuntimeError):
                request()
        inside = request if rng.random() < 0.3 else None
        args = rng.sample(live, min(len(live), rng.randint(1, 2)))
        if rng.random() < 0.25:
            live += driver.mutate(args, [0], inside=inside)
            live.remove(args[0])
        else:
            live += driver.call(args, [64 * rng.randint(1, 3)], inside=inside)
        while len(live) > 10:
            driver.release(live.pop(rng.randrange(4, len(live))))
    while locks:
        simulation.unlock_for_read(locks.pop())
    simulation.check()
    assert simulation.statistics()["num_fetches"] > 0


# The policy `random` draws from more candidates.
@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "random"])
def test_where_recomputing_is_enough_that_use_is_as_without_a_tier(policy):
    """Decision for decision: what no recipe makes leaves only when nothing else is left."""
    for trace in (generators.unet(3), generators.residual(8)):
        options = {"budget": "60%", "memory": "arena", "policy": policy, "events": True, "max_slowdown": 1000}
        without = remint.simulate(trace, **options)
        tier = Offload(bytes=PLENTY, bandwidth=1e30, latency=0, use="recompute")
        below = remint.simulate(trace, offload=tier, check=True, **options)
        assert without.status == "ok"
        assert below.events == without.events
        assert below.num_offloads == 0


@examples(30, suppress_health_check=ANY_HEALTH)
@given(program=programs, policy=st.sampled_from(POLICIES), use=st.sampled_from(["recompute", "offload"]))
def test_random_programs_with_one_use_of_the_tier(program, policy, use):
    budget = max(1, program.peak_bytes * 7 // 10)
    run = remint.simulate(
        program,
        budget=budget,
        memory="arena",
        policy=policy,
        inplace="ghost",
        offload=Offload(bytes=PLENTY, bandwidth=1e9, latency=0, use=use),
        events=True,
        check=True,
        max_slowdown=1000,
    )
    EventChecker(program, ghosts=True).replay(run.events)
    assert run.peak_bytes <= run.budget_bytes
