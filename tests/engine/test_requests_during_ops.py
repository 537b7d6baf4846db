"""Requests that are made while a kernel runs, and locks of readers outside of all ops.

A kernel hook stands for a custom op that calls `.numpy()` or `.data_ptr()` on a tensor.
"""

from __future__ import annotations

import contextlib
import random

import pytest

import remint
from remint import _core
from remint.trace.events import CONSTANT, RELEASE
from tests.support.event_checker import EventChecker
from tests.support.op_by_op import Driver
from tests.support.random_programs import random_program

pytestmark = pytest.mark.core

POLICIES = remint.policy_names("arena")


def test_a_pin_inside_of_a_kernel_leaves_no_lock() -> None:
    driver = Driver(64 * 8)
    (x,) = driver.call([], [64])
    for _ in range(20):
        (y,) = driver.call([x], [64], inside=lambda: driver.simulation.pin(x))
        driver.release(y)
    assert driver.simulation.is_pinned(x)
    assert driver.simulation.statistics()["pinned_bytes"] == 64
    driver.release(x)
    assert driver.simulation.statistics()["used_bytes"] == 0


def test_a_pin_of_an_evicted_tensor_inside_of_a_kernel_runs_its_op_and_keeps_the_outer_op() -> None:
    driver = Driver(64 * 8)
    (a,) = driver.call([], [64])
    (b,) = driver.call([a], [64])
    assert driver.simulation.evict(a)
    assert driver.simulation.evict(b)
    (x,) = driver.call([], [64])
    before = driver.simulation.statistics()["num_rematerializations"]
    # The outer op has asked for nothing yet; the replays of a and b give back only their own blocks.
    (y, z) = driver.call([x], [64, 64], inside=lambda: driver.simulation.pin(b))
    assert driver.simulation.statistics()["num_rematerializations"] == before + 2
    for tensor in (b, x, y, z):
        assert driver.simulation.is_resident(tensor)
    assert driver.simulation.is_pinned(b)
    assert not driver.simulation.evict(b)
    assert driver.simulation.evict(x)


def test_the_inputs_of_the_outer_op_stay_while_a_request_inside_frees_up_space() -> None:
    """There is space for the op or for the rematerialization, but what the outer kernel reads may not go."""
    driver = Driver(64 * 4)
    (a,) = driver.call([], [128])
    assert driver.simulation.evict(a)
    (x,) = driver.call([], [64])
    (y,) = driver.call([], [64])
    resident: list[bool] = []

    def inside() -> None:
        driver.simulation.materialize(a)
        resident.extend(driver.simulation.is_resident(tensor) for tensor in (x, y, a))

    driver.call([x, y], [64], inside=inside)
    assert resident == [True, True, True]
    # The op's own output then had to evict `a`, the only candidate.
    assert not driver.simulation.is_resident(a)


def test_a_pin_of_what_the_kernel_writes_pins_the_value_after_the_write_and_keeps_the_recipe_of_the_one_before() -> (
    None
):
    driver = Driver(64 * 8)
    (x,) = driver.call([], [64])
    (c,) = driver.call([x], [64])
    assert driver.simulation.evict(c)
    (written,) = driver.mutate([x], [0], inside=lambda: driver.simulation.pin(x))
    assert driver.simulation.is_pinned(written)
    # c is recomputed from the value before the write, which is recomputed, too.
    driver.call([c], [64])
    assert driver.simulation.is_resident(c)
    assert driver.simulation.statistics()["num_rematerializations"] == 2


@pytest.mark.parametrize("overwritten", [False, True])
def test_a_pin_of_what_the_kernel_writes_holds_after_the_op(overwritten: bool) -> None:
    driver = Driver(64 * 8)
    (x,) = driver.call([], [64])
    if overwritten:
        driver.simulation.pin(x)
    (written,) = driver.mutate([x], [0], inside=lambda: driver.simulation.pin(x))
    assert driver.simulation.is_pinned(written)
    assert not driver.simulation.evict(written)


def test_before_write_inside_of_a_kernel_keeps_what_was_computed_from_the_bytes() -> None:
    driver = Driver(64 * 8)
    weight = driver.builder.constant(64)
    driver.advance()
    (a,) = driver.call([weight], [64])
    (b,) = driver.call([a], [64])
    assert driver.simulation.evict(a)
    assert driver.simulation.evict(b)
    (x,) = driver.call([], [64])
    driver.call([x], [64], inside=lambda: driver.simulation.before_write(weight))
    assert driver.simulation.is_pinned(a)
    # b is still recomputed, from a.
    before = driver.simulation.statistics()["num_rematerializations"]
    driver.call([b], [64])
    assert driver.simulation.statistics()["num_rematerializations"] == before + 1


def test_an_error_in_the_middle_of_a_request_inside_leaves_no_lock() -> None:
    driver = Driver(64 * 3)
    (a,) = driver.call([], [128])
    assert driver.simulation.evict(a)
    (x,) = driver.call([], [64])
    driver.builder.call("op", [x], [128], 1e-6)
    driver.inside = lambda: driver.simulation.lock_for_read(a)
    # The read lock takes all that is left, so the op itself does not fit, and the lock is still there.
    assert driver.simulation.advance(driver.builder.build(), finish=False) == "oom"
    driver.simulation.check()
    assert driver.simulation.is_resident(a)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_lock_for_a_read_keeps_the_bytes_in_place_over_many_ops(policy: str) -> None:
    driver = Driver(64 * 6, policy=policy)
    tensors = [driver.call([], [64])[0] for _ in range(4)]
    first = tensors[0]
    assert driver.simulation.evict(first)
    lock = driver.simulation.lock_for_read(first)
    place = next(address for address, _, tensor in driver.simulation.blocks() if tensor == first)
    for _ in range(20):
        tensors += driver.call(tensors[-2:], [64])
        assert driver.simulation.is_resident(first)
        assert place == next(address for address, _, tensor in driver.simulation.blocks() if tensor == first)
        assert not driver.simulation.evict(first)
    driver.simulation.unlock_for_read(lock)
    driver.simulation.check()
    assert driver.simulation.evict(first)


def test_a_release_while_locked_for_a_read_is_handled_when_it_is_unlocked() -> None:
    driver = Driver(64 * 4)
    (x,) = driver.call([], [64])
    locks = [driver.simulation.lock_for_read(x) for _ in range(2)]
    driver.release(x)
    assert driver.simulation.statistics()["used_bytes"] == 64
    driver.simulation.unlock_for_read(locks[0])
    assert driver.simulation.statistics()["used_bytes"] == 64
    driver.simulation.unlock_for_read(locks[1])
    assert driver.simulation.statistics()["used_bytes"] == driver.simulation.statistics()["num_storages"] == 0


def test_a_lock_for_a_read_follows_the_bytes_through_an_in_place_op() -> None:
    driver = Driver(64 * 4)
    (x,) = driver.call([], [64])
    lock = driver.simulation.lock_for_read(x)
    (y,) = driver.mutate([x], [0])
    (z,) = driver.mutate([y], [0])
    driver.release(x)
    driver.release(y)
    assert not driver.simulation.evict(z)
    driver.simulation.unlock_for_read(lock)
    driver.simulation.check()
    assert driver.simulation.evict(z)
    driver.release(z)
    assert driver.simulation.statistics()["num_storages"] == 0


def test_a_replay_of_an_in_place_op_leaves_bytes_that_are_read_alone() -> None:
    driver = Driver(64 * 6)
    (x,) = driver.call([], [64])
    (a,) = driver.call([x], [64])
    (y,) = driver.mutate([x], [0])
    assert driver.simulation.evict(y)
    assert driver.simulation.evict(a)
    (b,) = driver.call([a], [64])  # remakes the value before the write, and a
    for tensor in (a, b):
        driver.simulation.evict(tensor)
    lock = driver.simulation.lock_for_read(a)
    driver.call([y], [64])
    assert driver.simulation.is_resident(a)
    assert driver.simulation.is_resident(y)
    driver.simulation.unlock_for_read(lock)
    driver.simulation.check()


def test_a_replay_of_an_in_place_op_under_a_read_lock_works_on_a_copy() -> None:
    """A lock keeps the value it was taken on, too: the replay of the op that wrote it must not take its bytes over."""
    driver = Driver(64 * 8)
    (x,) = driver.call([], [64])
    (before,) = driver.call([x], [64])
    lock = driver.simulation.lock_for_read(x)
    (y,) = driver.mutate([x], [0])
    (between,) = driver.call([y], [64])
    driver.mutate([y], [0])
    for tensor in (before, between):
        assert driver.simulation.evict(tensor)
    driver.simulation.materialize(between)  # makes x, runs the write again, and then its own op
    made = driver.simulation.statistics()["num_rematerializations"]
    driver.simulation.materialize(before)
    assert driver.simulation.statistics()["num_rematerializations"] == made + 1, "x was no longer there"
    driver.simulation.unlock_for_read(lock)
    driver.simulation.check()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("deallocation", ["ignore", "eager", "banish"])
def test_random_requests_inside_of_kernels_keep_every_rule(policy: str, deallocation: str) -> None:
    """Every read finds its value, and no lock is left, whatever kernels ask for."""
    for seed in range(25):
        check_random_requests(seed, policy=policy, deallocation=deallocation)


def check_random_requests(seed: int, **options: str) -> None:
    trace = random_program(seed, 25, mutations=0.3)
    rng = random.Random(seed)
    held = held_at(trace)
    locks: list[int] = []
    simulation = _core.Simulation(budget=trace.peak_bytes * 16, arena=True, ghosts=True, events=True, **options)

    def inside(event: int) -> None:
        current = simulation.statistics()["failed_event"]
        # The kernel of a replay asks for nothing that would need its own output.
        choices = [tensor for tensor in held[current] if event == current or simulation.is_resident(tensor)]
        if choices and rng.random() < 0.5:
            # A kernel may catch it.
            with contextlib.suppress(RuntimeError):
                request(rng.choice(choices))

    def request(tensor: int) -> None:
        match rng.randrange(5):
            case 0:
                simulation.pin(tensor)
            case 1:
                simulation.materialize(tensor)
            case 2:
                simulation.evict(tensor)
            case 3:
                locks.append(simulation.lock_for_read(tensor))
            case 4 if locks:
                simulation.unlock_for_read(locks.pop())

    simulation.set_kernel_hook(inside)
    status = simulation.advance(trace, finish=False)
    simulation.set_kernel_hook(lambda event: None)
    while locks:
        simulation.unlock_for_read(locks.pop())
    if status == "ok":
        assert simulation.advance(trace, finish=True) in ("ok", "oom")
    simulation.check()
    EventChecker(trace, ghosts=True).replay(tuple(simulation.decisions().split(";")[:-1]))


def held_at(trace: remint.Trace) -> list[list[int]]:
    """The tensors that the program holds when an event starts."""
    held: list[int] = []
    result = []
    for event in range(trace.num_events):
        result.append([*held])
        if trace.kinds[event] == RELEASE:
            held.remove(int(trace.args[trace.arg_offsets[event]]))
        elif trace.kinds[event] >= CONSTANT:
            held += range(int(trace.out_offsets[event]), int(trace.out_offsets[event + 1]))
    return result
