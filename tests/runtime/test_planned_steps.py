"""Plans of another process: followed to the byte, left soundly, and nothing is left of the process."""

import contextlib
import os
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import remint
from remint import torch_extension
from tests.runtime.test_learning import COSTS, Skips, optimizer_of, pair, peak_of_step, same, train

pytestmark = pytest.mark.runtime
MOST_SECONDS = 120


@pytest.fixture(scope="module", autouse=True)
def cache_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("XDG_CACHE_HOME")
    # The module for torch is loaded from where it was built before.
    torch_extension.load()
    os.environ["XDG_CACHE_HOME"] = str(folder)
    yield folder / "remint" / "plans"
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


def is_being_planned():
    """Return whether this process has a child that plans. Other tests may have left children of other kinds."""
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"step_planning" in (folder / "cmdline").read_bytes():
                return True
    return False


def steps_until(run, is_done, step):
    """Run steps until the budget says so."""
    started = time.monotonic()
    while not is_done(run.learning):
        assert time.monotonic() - started < MOST_SECONDS, str(run.learning)
        step()
        time.sleep(0.01)


def tight_step(share=0.5):
    model, other = pair(depth=6)
    x = torch.randn(512, 32)
    return model, other, x, int(share * peak_of_step(other, x)), optimizer_of("sgd", other)


def is_planned(learning):
    return learning.planned.num_steps >= 3


@pytest.mark.parametrize("share", [0.5, 0.4])
def test_a_plan_takes_the_place_of_the_guide(share):
    model, other, x, budget, optimizer = tight_step(share)
    losses = []
    with remint.budget(budget, costs=COSTS, check=True) as run:

        def step():
            found, _ = train(other, optimizer, [x])
            losses.extend(found)

        steps_until(run, is_planned, step)
        learning = run.learning
        predicted, measured = learning.predicted, learning.measured
        assert predicted.peak_bytes == measured.peak_bytes
        assert predicted.num_rematerializations == measured.num_rematerializations
        assert learning.planned.slowdown < learning.learned.slowdown
        assert learning.num_departures == 0, learning.last_departure
        assert "planned" in str(run)
    expected = train(model, optimizer_of("sgd", model), [x] * len(losses))
    assert same(expected, (losses, list(other.parameters())))
    assert not is_being_planned()


@pytest.mark.slow
def test_a_second_run_finds_the_plan_and_a_damaged_one_is_replaced(cache_folder):
    def run_until_planned():
        _, other, x, budget, optimizer = tight_step(0.55)
        with remint.budget(budget, costs=COSTS) as run:
            steps_until(run, is_planned, lambda: train(other, optimizer, [x]))
            return run.learning.predicted.num_rematerializations

    predicted = run_until_planned()
    files = list(cache_folder.glob("*.plan"))
    assert files
    assert not list(cache_folder.glob("*.tmp"))
    kept = {file: file.read_bytes() for file in files}
    assert run_until_planned() == predicted
    for file, content in kept.items():
        file.write_bytes(content[: len(content) // 2])
    assert run_until_planned() == predicted


@pytest.mark.parametrize("how", ["leave", "raise"])
def test_nothing_is_left_of_the_process(how):
    _, other, x, budget, optimizer = tight_step(0.45)
    expected = pytest.raises(ZeroDivisionError) if how == "raise" else contextlib.nullcontext()
    with expected, remint.budget(budget, costs=COSTS) as run:
        steps_until(run, lambda learning: learning.is_planning, lambda: train(other, optimizer, [x]))
        assert is_being_planned()
        if how == "raise":
            raise ZeroDivisionError
    assert not is_being_planned()


def test_a_forked_child_leaves_the_process_alone():
    _, other, x, budget, optimizer = tight_step(0.52)
    with remint.budget(budget, costs=COSTS) as run:
        steps_until(run, lambda learning: learning.is_planning, lambda: train(other, optimizer, [x]))
        child = os.fork()
        if child == 0:
            run._session.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        steps_until(run, is_planned, lambda: train(other, optimizer, [x]))
    assert not is_being_planned()


def test_no_process_without_plans():
    _, other, x, budget, optimizer = tight_step()
    with remint.budget(budget, costs=COSTS, plan=False) as run:
        for _ in range(12):
            train(other, optimizer, [x])
            assert not run.learning.is_planning
    assert run.learning.learned.num_steps > 5
    assert run.learning.planned.num_steps == 0


@pytest.mark.slow
@settings(max_examples=5)
@given(st.lists(st.sampled_from(["same", "same", "batch", "keep", "short", "raise", "evict"]), max_size=8))
def test_departures_from_plans_keep_the_bits(what):
    model, other, x, budget, optimizer = tight_step(0.5)
    kept: list[torch.Tensor] = []

    def step(model, optimizer, kind):
        optimizer.zero_grad()
        y = Skips.forward(model, x[:256] if kind == "batch" else x)
        if kind == "keep":
            kept.append(y.detach().sin())
        if kind == "raise":
            return
        if kind == "short":
            y = y[:, :5]
        if kind == "evict":
            remint.evict(y)
        loss = y.square().mean()
        loss.backward()
        optimizer.step()

    count = 0
    with remint.budget(budget, costs=COSTS, check=True) as run:

        def plain():
            nonlocal count
            step(other, optimizer, "same")
            count += 1

        steps_until(run, is_planned, plain)
        for kind in [*what, "same", "same"]:
            step(other, optimizer, kind)
        inside = [t.clone() for t in kept]
    kept.clear()
    plain_optimizer = optimizer_of("sgd", model)
    for kind in ["same"] * count + [*what, "same", "same"]:
        step(model, plain_optimizer, "same" if kind == "evict" else kind)
    assert same((inside, list(other.parameters())), (kept, list(model.parameters())))
