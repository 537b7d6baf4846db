"""What the op driver does when a step of an op fails: no lock stays behind, and no value is lost."""

from __future__ import annotations

import pytest

from tests.support.op_by_op import Driver

pytestmark = pytest.mark.core


class Failure(Exception):  # noqa: N818
    pass


def fail(*args: object) -> None:
    raise Failure


def between_two_gaps() -> tuple[Driver, int]:
    """A tensor in the middle of the arena, with 64 free bytes on both sides: 128 do not fit before it is moved."""
    driver = Driver(64 * 3)
    (gap,) = driver.call([], [64])
    (x,) = driver.call([], [64])
    driver.release(gap)
    assert driver.simulation.blocks() == [(64, 64, x)]
    return driver, x


def test_a_try_that_ran_out_of_memory_is_undone_before_the_next_one() -> None:
    driver, x = between_two_gaps()
    steps: list[str] = []
    driver.simulation.set_op_hooks(
        ready=lambda event: steps.append("ready"), undo=lambda event: steps.append("undo") or True
    )
    driver.call([x], [128], inside=lambda: steps.append("kernel"))
    assert steps == ["ready", "kernel", "undo"]
    assert driver.calls == 4  # two ops before, and two tries
    assert driver.simulation.is_resident(x)


def test_a_try_that_cannot_be_undone_is_the_last_one() -> None:
    driver, x = between_two_gaps()
    driver.simulation.set_op_hooks(undo=lambda event: False)
    driver.builder.call("op", [x], [128], 1e-6)
    assert driver.simulation.advance(driver.builder.build(), finish=False) == "oom"
    assert driver.calls == 3
    driver.simulation.check()
    assert driver.simulation.statistics()["used_bytes"] == 64
    assert driver.simulation.evict(x), "a lock was left behind"


def test_an_error_before_the_kernel_leaves_no_lock_and_the_op_can_be_called_again() -> None:
    driver = Driver(64 * 8)
    (x,) = driver.call([], [64])
    assert driver.simulation.evict(x)
    driver.simulation.set_op_hooks(ready=fail, failed=lambda event: pytest.fail("the kernel did not run"))
    driver.builder.mutate("op_", [x], [0], 1e-6)
    with pytest.raises(Failure):
        driver.simulation.advance(driver.builder.build(), finish=False)
    driver.simulation.check()
    assert not driver.simulation.is_pinned(x)
    assert driver.simulation.evict(x)
    driver.simulation.set_op_hooks()
    driver.advance()


@pytest.mark.parametrize("wrote", [False, True])
def test_an_error_in_a_kernel_that_writes(wrote: bool) -> None:
    driver = Driver(64 * 8)
    (x,) = driver.call([], [64])
    (before,) = driver.call([x], [64])
    assert driver.simulation.evict(before)
    driver.simulation.set_op_hooks(failed=lambda event: wrote)
    driver.builder.mutate("op_", [x], [0], 1e-6)
    driver.inside = fail
    with pytest.raises(Failure):
        driver.simulation.advance(driver.builder.build(), finish=False)
    driver.simulation.check()
    # What a kernel may have written is as it left it: nothing can recompute it.
    assert driver.simulation.is_pinned(x) == wrote
    assert driver.simulation.evict(x) != wrote
    # What was computed before is recomputed from the value before the write.
    made = driver.simulation.statistics()["num_rematerializations"]
    driver.simulation.materialize(before)
    assert driver.simulation.is_resident(before)
    assert driver.simulation.statistics()["num_rematerializations"] == made + 2


def test_an_error_in_a_kernel_gives_its_memory_back() -> None:
    driver = Driver(64 * 8)
    (x,) = driver.call([], [64])
    driver.builder.call("op", [x], [64, 128], 1e-6)
    driver.inside = fail
    with pytest.raises(Failure):
        driver.simulation.advance(driver.builder.build(), finish=False)
    driver.simulation.check()
    assert driver.simulation.statistics()["used_bytes"] == 64
    driver.advance()


def test_an_op_whose_inputs_never_fit_at_once_fails_without_replaying_in_circles() -> None:
    driver = Driver(64 * 4)
    made = [driver.call([], [64])[0] for _ in range(6)]
    before = driver.simulation.statistics()["num_rematerializations"]
    driver.builder.call("op", made, [64], 1e-6)
    assert driver.simulation.advance(driver.builder.build(), finish=False) == "oom"
    assert driver.simulation.statistics()["num_rematerializations"] - before <= len(made)
    driver.simulation.check()


def test_inputs_that_fit_beside_what_is_pinned_are_made_one_after_the_other() -> None:
    """The pinned tensor leaves room for three others, which the op needs at once."""
    driver = Driver(64 * 5)
    (pinned,) = driver.call([], [64])
    driver.simulation.pin(pinned)
    made = [driver.call([], [64])[0] for _ in range(8)]
    driver.call(made[:3], [64])
    assert all(driver.simulation.is_resident(value) for value in made[:3])
