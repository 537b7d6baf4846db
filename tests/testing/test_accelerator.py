"""The test device behaves as an accelerator does: its memory, streams, events, random numbers and allocator."""

import subprocess
import sys

import pytest
import torch

from remint.testing import accelerator
from tests.support.models import CASES
from tests.support.training import optimizer_for

pytestmark = pytest.mark.accelerator


def numbers(count, device):
    return torch.arange(float(count), device=device)


def test_the_host_cannot_touch_its_memory(device):
    code = (
        "import ctypes, torch; from remint.testing import accelerator\n"
        "x = torch.ones(4, device=accelerator.load()); torch.accelerator.synchronize()\n"
        "print(x.cpu().tolist(), flush=True)\n"
        "ctypes.string_at(x.data_ptr(), 4)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stdout == "[1.0, 1.0, 1.0, 1.0]\n"
    assert found.returncode < 0  # a signal


def test_ops_run_after_their_calls_have_returned(device):
    x = numbers(1000, device)
    x + 1  # the host waits for the first call of a kind, to learn the sizes of its results
    torch.accelerator.synchronize()
    accelerator.load(devices=2, delay_us=50_000, seed=4)
    stream = torch.accelerator.current_stream()
    results = [x + 1 for _ in range(10)]
    assert not stream.query()
    assert all(torch.equal(result.cpu(), torch.arange(1.0, 1001.0)) for result in results)
    assert stream.query()


def test_the_number_of_devices_cannot_change(device):
    with pytest.raises(ValueError, match="cannot change: start another process for devices=3"):
        accelerator.load(devices=3)


def test_errors_of_kernels_come_with_the_next_synchronization(device):
    table = torch.randn(4, 3, device=device)
    good, bad = torch.tensor([1, 3], device=device), torch.tensor([1, 9], device=device)
    torch.nn.functional.embedding(good, table)
    torch.nn.functional.embedding(bad, table)
    with pytest.raises(IndexError, match="out of range"):
        torch.accelerator.synchronize()
    assert torch.equal(table.cpu(), table.cpu())


# ── Memory ──


def test_freed_memory_is_poisoned_in_stream_order(device):
    side = torch.Stream(device)
    wrong = 0
    for seed in range(4):
        accelerator.load(devices=2, delay_us=5000, seed=seed)
        x = numbers(4096, device) * 2
        side.wait_stream(torch.accelerator.current_stream())
        with side:
            sums = [x + 1.0 for _ in range(4)]
        del x  # without record_stream: the other stream may not have read it yet
        torch.accelerator.synchronize()
        wrong += any(not torch.equal(s.cpu(), torch.arange(4096.0) * 2 + 1) for s in sums)
        with side:
            del sums
    assert wrong > 0


def test_record_stream_keeps_memory_until_the_stream_has_used_it(device):
    side = torch.Stream(device)
    for seed in range(4):
        accelerator.load(devices=2, delay_us=5000, seed=seed)
        x = numbers(4096, device) * 2
        side.wait_stream(torch.accelerator.current_stream())
        with side:
            sums = [x + 1.0 for _ in range(4)]
        x.record_stream(side)
        del x
        torch.accelerator.synchronize()
        assert all(torch.equal(s.cpu(), torch.arange(4096.0) * 2 + 1) for s in sums)
        with side:
            del sums


def test_memory_statistics(device):
    torch.accelerator.synchronize()
    before = torch.accelerator.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    x = torch.empty(1 << 20, dtype=torch.uint8, device=device)
    assert torch.accelerator.memory_allocated() == before + (1 << 20)
    del x
    assert torch.accelerator.memory_allocated() == before
    assert torch.accelerator.max_memory_allocated() == before + (1 << 20)
    torch.accelerator.synchronize()
    free, total = torch.accelerator.get_memory_info()
    assert total == 1 << 30
    assert free <= total - before


def test_memory_that_is_too_large_is_an_out_of_memory_error(device):
    with pytest.raises(torch.OutOfMemoryError, match="has no"):
        torch.empty(2 << 30, dtype=torch.uint8, device=device)
    # Freed memory comes back when the streams have come that far: nothing is kept.
    for _ in range(4):
        assert torch.empty(800 << 20, dtype=torch.uint8, device=device).numel() == 800 << 20


def test_matrix_products_ask_for_scratch_memory(device):
    a = torch.randn(64, 64, device=device)
    for _ in range(2):  # the first call of a kind has no scratch memory: nothing is known of its result
        before = accelerator.counts()["allocations"]
        c = a @ a
        taken = accelerator.counts()["allocations"] - before
    assert taken == 2
    assert torch.equal(c.cpu(), a.cpu() @ a.cpu())


# ── Streams, events and copies ──


def test_streams_run_side_by_side_and_events_order_them(device):
    x = numbers(1000, device)
    first, second = torch.Stream(device), torch.Stream(device)
    torch.accelerator.synchronize()
    for seed in range(5):
        accelerator.load(devices=2, delay_us=2000, seed=seed)
        with first:
            y = x * 2
            for _ in range(5):
                y = y + 1
            event = first.record_event()
        with second:
            second.wait_event(event)
            z = y * 10
        y.record_stream(second)
        second.synchronize()
        assert torch.equal(z.cpu(), (torch.arange(1000.0) * 2 + 5) * 10)
        z.record_stream(torch.accelerator.current_stream())


def test_without_an_event_streams_are_not_ordered(device):
    x = numbers(1000, device)
    first, second = torch.Stream(device), torch.Stream(device)
    torch.accelerator.synchronize()
    wrong = 0
    for seed in range(5):
        accelerator.load(devices=2, delay_us=5000, seed=seed)
        with first:
            y = x * 2
            for _ in range(5):
                y = y + 1
        with second:
            z = y * 10
        torch.accelerator.synchronize()
        wrong += not torch.equal(z.cpu(), (torch.arange(1000.0) * 2 + 5) * 10)
    assert wrong > 0


def test_event_times_are_the_same_in_every_run(device):
    x = numbers(100_000, device)
    times = []
    for seed in range(3):
        accelerator.load(devices=2, delay_us=1000, seed=seed)
        start, end = (torch.Event(device, enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(4):
            x + 1
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    assert times[0] > 0
    assert times == [times[0]] * 3


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("non_blocking", [False, True])
def test_copies_between_host_and_device(device, pinned, non_blocking):
    host = torch.randn(1000)
    given = host.pin_memory() if pinned else host.clone()
    assert given.is_pinned() == pinned
    there = given.to(device, non_blocking=non_blocking)
    if not pinned or not non_blocking:
        given.zero_()  # has been read
    back = torch.empty(1000, pin_memory=pinned)
    back.copy_(there, non_blocking=non_blocking)
    torch.accelerator.synchronize()
    assert torch.equal(back, host)


def test_two_devices(device):
    x = torch.randn(100, 100)
    a = x.to(f"{device}:0")
    b = (a @ a).to(f"{device}:1")
    c = b + b
    assert str(c.device) == f"{device}:1"
    assert torch.equal(c.cpu(), x @ x + x @ x)
    with pytest.raises(RuntimeError, match="same device"):
        a + b
    with torch.device(f"{device}:1"):
        assert torch.zeros(3).device.index == 1
    torch.accelerator.set_device_index(1)
    try:
        assert torch.zeros(3, device=device).device.index == 1
    finally:
        torch.accelerator.set_device_index(0)


# ── Random numbers and results ──


def test_the_generator_is_a_seed_and_an_offset(device):
    torch.manual_seed(5)
    first, second = torch.randn(100, device=device), torch.rand(100, device=device)
    torch.manual_seed(5)
    assert torch.equal(torch.randn(100, device=device), first)
    state = torch.get_device_module(device).get_rng_state()
    assert torch.equal(torch.rand(100, device=device), second)
    torch.get_device_module(device).set_rng_state(state)
    assert torch.equal(torch.rand(100, device=device), second)
    own = torch.Generator(device).manual_seed(5)
    assert torch.equal(torch.randn(100, device=device, generator=own), first)
    with torch.random.fork_rng(device_type=device):
        torch.rand(3, device=device)
    assert not torch.equal(torch.rand(100, device=device), second)


@pytest.mark.parametrize("name", CASES)
def test_training_gives_the_same_bits_with_any_delays(name, device):
    def train(delay_us):
        accelerator.load(devices=2, delay_us=delay_us, seed=delay_us)
        torch.manual_seed(0)
        with torch.device(device):
            model, loss_of = CASES[name]()
            optimizer = optimizer_for("adam", model.to(device))
            losses = []
            for _ in range(2):
                optimizer.zero_grad()
                losses.append(loss_of(model))
                losses[-1].backward()
                optimizer.step()
        return [t.detach().cpu() for t in (*losses, *model.state_dict().values())]

    expected = train(0)
    assert not any(t.isnan().any() for t in expected)
    assert all(map(torch.equal, expected, train(100)))
