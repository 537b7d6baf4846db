"""Budgets of the test device with memory of the host below them, with delays and poison."""

import functools

import pytest
import torch

import remint
from remint import Offload
from remint.testing import accelerator
from tests.support.all_inside import assert_same_numbers, state_away_between_steps, train_inside
from tests.support.training import COSTS
from tests.support.two_streams import BASE, KIB, assert_right, late, numbers, streams, warm_up

pytestmark = pytest.mark.accelerator

FAST = Offload(bytes="1GiB", bandwidth="1GB")
# With foreach, which is the default on accelerators, one op needs all weights, gradients and state at once.
ADAM = "adam-one-by-one"


def load(delay_us: int = 0, seed: int = 0) -> str:
    return accelerator.load(devices=2, delay_us=delay_us, seed=seed)


@functools.cache
def plain(name: str, steps: int = 3) -> dict[str, torch.Tensor]:
    return train_inside(name, optimizer=ADAM, steps=steps, device=load())[0]


@functools.cache
def peak(name: str) -> int:
    device = load()
    inside = remint.budget("512MiB", device=device, costs=COSTS, learn=False)
    return train_inside(name, inside, optimizer=ADAM, device=device)[1].peak_bytes


# Where recomputation alone can be enough.
RECOMPUTED = [("resnet", 40), ("transformer", 40), ("gpt2_sdpa", 40), ("lora_llama", 40)]


@pytest.mark.parametrize("delay_us", [0, 200])
@pytest.mark.parametrize("percent", [40, 25])
@pytest.mark.parametrize("name", ["wide", "resnet", "transformer", "gpt2_sdpa", "lora_llama"])
def test_bits_where_recomputation_cannot_reach(name, percent, delay_us):
    budget = peak(name) * percent // 100
    device = load(delay_us, seed=percent)
    inside = remint.budget(budget, device=device, costs=COSTS, offload=FAST, max_slowdown=None)
    found, run = train_inside(name, inside, optimizer=ADAM, device=device)
    assert_same_numbers(plain(name), found)
    assert run.peak_bytes <= budget
    assert run.num_fetches > 0 or (name, percent) in RECOMPUTED


def test_the_state_of_an_optimizer_leaves_between_its_uses():
    device = load(20)
    expected, _ = state_away_between_steps(None, ADAM, device)
    inside = remint.budget(peak("wide") * 3 // 10, device=device, costs=COSTS, offload=FAST, max_slowdown=None)
    found, away = state_away_between_steps(inside, ADAM, device)
    assert_same_numbers(expected, found)
    assert all(part > 0.5 for part in away[1:])


@pytest.mark.parametrize("bandwidth", ["1kB", "1TB"])
def test_chaos(bandwidth):
    device = load(20)
    offload = Offload(bytes="1GiB", bandwidth=bandwidth)
    inside = remint.budget(
        "512MiB", device=device, costs=COSTS, chaos=True, check=True, offload=offload, max_slowdown=None
    )
    found, run = train_inside("mlp", inside, optimizer=ADAM, steps=2, device=device)
    assert_same_numbers(plain("mlp", steps=2), found)
    assert run.num_fetches > 100


def test_what_a_late_stream_writes_is_offloaded_after_that():
    device = load()
    warm_up(device)
    main, side = streams(device)
    a = numbers(device)
    offload = Offload(bytes="1GiB", bandwidth="1TB", latency=0)
    with remint.budget(f"{KIB * 8}KiB", device=device, learn=False, offload=offload) as run:
        with side:
            late()
            x = a * 2
            pinned = x.detach().requires_grad_(True)
        # The program has not waited yet: it does not use the bytes here.
        assert remint.evict(pinned)
        assert run.num_offloads == 1
        main.wait_stream(side)
        y = pinned.detach() + 1.0
    assert_right(y, BASE * 2 + 1)
    torch.accelerator.synchronize()


def test_what_a_late_stream_reads_is_reused_after_that():
    """x leaves for the host while the side stream has yet to read it; its memory is written by others at once."""
    device = load()
    warm_up(device)
    main, side = streams(device)
    a = numbers(device)
    offload = Offload(bytes="1GiB", bandwidth="1TB", latency=0)
    with remint.budget(f"{KIB * 3}KiB", device=device, learn=False, offload=offload) as run:
        x = a * 2
        side.wait_stream(main)
        with side:
            late()
            y = x + 1.0
        more = [a + 5.0, a * 3]
        main.wait_stream(side)
        assert run.num_offloads > 0
        z = x + 3.0
    assert_right(y, BASE * 2 + 1)
    assert_right(z, BASE * 2 + 3)
    assert_right(more[0], BASE + 5)
    assert_right(more[1], BASE * 3)
    torch.accelerator.synchronize()


def test_what_a_late_stream_reads_stays_until_another_tensor_is_fetched():
    """The arena holds three tensors. x comes back into the memory of one that the side stream has yet to read."""
    device = load()
    warm_up(device)
    main, side = streams(device)
    a = numbers(device)
    offload = Offload(bytes="1GiB", bandwidth="1TB", latency=0)
    with remint.budget(f"{KIB * 3}KiB", device=device, learn=False, offload=offload) as run:
        x = a * 2
        assert remint.evict(x)
        read = a + 1.0
        filling = a * 7
        side.wait_stream(main)
        with side:
            late()
            y = read * 3
        del read
        remint.materialize(x)
        assert (run.num_offloads, run.num_fetches) == (1, 1)
        main.wait_stream(side)
    assert_right(y, (BASE + 1) * 3)
    assert_right(x, BASE * 2)
    assert_right(filling, BASE * 7)
    torch.accelerator.synchronize()


def test_an_accelerator_has_no_file(tmp_path):
    device = load()
    for offload in ("disk", tmp_path):
        inside = remint.budget("1MiB", device=device, offload=offload)
        with pytest.raises(ValueError, match="memory of the host"), inside:
            pass


def test_bandwidth_is_measured():
    with remint.budget("1MiB", device=load(), offload="16MiB") as run:
        assert run.offload_bandwidth > 1e6
        assert run.offload_bandwidth != 1e9
