"""The CUDA backend on a runtime without a GPU. Kernels compute nothing: what is checked are bytes that are copied and
filled, addresses, orders, sizes and events.

`clone` and `copy_` are copies by the runtime: they can be recomputed, and give bytes to compare.
"""

import ctypes

import pytest
import torch

import remint

FAKE = ctypes.CDLL(None)
FAKE.fake_used_bytes.restype = FAKE.fake_num_kernels.restype = FAKE.fake_num_host_waits.restype = ctypes.c_uint64

MIB = 1 << 20
SIZE = 4096
NBYTES = SIZE * 4
BASE = torch.arange(float(SIZE))
OTHER = BASE + 0.5
WALLS = ("hard", "soft")


@pytest.fixture(autouse=True)
def quiet():
    yield
    for index in range(2):
        torch.cuda.synchronize(index)
    torch.cuda.empty_cache()


def numbers(content: torch.Tensor = BASE) -> torch.Tensor:
    made = content.to("cuda")
    torch.cuda.synchronize()
    return made


def assert_bytes(found: torch.Tensor, expected: torch.Tensor = BASE) -> None:
    assert torch.equal(found.cpu(), expected)


# ── The allocator ──


def test_tensors_are_in_the_arena_with_512_bytes_alignment():
    with remint.budget("4MiB", device="cuda") as run:
        made = [torch.empty(n, device="cuda") for n in (100, 1000, 10_001)]
        addresses = [tensor.data_ptr() for tensor in made]
        assert all(address % 512 == 0 for address in addresses)
        assert max(addresses) - min(addresses) < 4 * MIB
        assert run.used_bytes >= sum(tensor.nbytes for tensor in made)
    assert list(run.devices) == ["cuda:0"]


def test_the_default_device_is_cuda():
    with remint.budget("1MiB") as run:
        torch.empty(1000, device="cuda")
    assert run.peak_bytes >= 4000


def test_pytorch_answers_as_before():
    """Statistics, snapshots, the cache and the rest come from PyTorch's own allocator, which has the arena."""
    a = numbers()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with remint.budget("4MiB", device="cuda"):
        kept = a.clone()
        assert torch.cuda.memory_allocated() == before + 4 * MIB
        assert torch.cuda.max_memory_allocated() >= before + 4 * MIB
        assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated()
        assert torch.cuda.memory_snapshot()
        assert "Active memory" in torch.cuda.memory_summary()
        assert torch.cuda.get_allocator_backend() == "native"
        assert torch.cuda.mem_get_info()[1] == 1 << 30
        torch.cuda.memory._record_memory_history()
        torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert_bytes(kept)
    assert torch.cuda.memory_allocated() <= before + NBYTES + 4096


def test_the_arena_is_given_back():
    torch.cuda.empty_cache()
    before = FAKE.fake_used_bytes(0)
    with remint.budget("64MiB", device="cuda"):
        kept = numbers().clone()
        assert FAKE.fake_used_bytes(0) >= before + 64 * MIB
    assert_bytes(kept)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert FAKE.fake_used_bytes(0) <= before + 2 * MIB


def test_workspaces_of_libraries_are_in_the_arena_and_do_not_keep_it():
    torch._C._cuda_clearCublasWorkspaces()
    with remint.budget("64MiB", device="cuda") as run:
        a = torch.empty(256, 256, device="cuda")
        peak = run.peak_bytes
        a @ a
        assert run.peak_bytes > peak + 256 * 256 * 4 + MIB
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() < 64 * MIB


def test_pools_are_outside_and_counted():
    pool = torch.cuda.MemPool()
    with remint.budget("4MiB", device="cuda") as run:
        inside = torch.empty(SIZE, device="cuda")
        outside_before, used = run.outside_bytes, run.used_bytes
        with torch.cuda.use_mem_pool(pool):
            outside = torch.empty(MIB, device="cuda")
        assert run.used_bytes == used
        assert run.outside_bytes >= outside_before + 4 * MIB
        again = torch.empty(SIZE, device="cuda")
        assert run.used_bytes > used
    assert inside.numel() + again.numel() + outside.numel() == 2 * SIZE + MIB


def test_memory_of_a_budget_is_not_shared_with_other_processes():
    with remint.budget("4MiB", device="cuda"):
        x = torch.empty(SIZE, device="cuda")
        with pytest.raises(RuntimeError, match="cannot be shared with another process"):
            x.untyped_storage()._share_cuda_()


# ── The wall ──


def test_the_wall():
    torch.cuda.empty_cache()
    before = FAKE.fake_used_bytes(0)
    a = numbers()
    with remint.budget(8 * NBYTES, device="cuda", learn=False) as run:
        made = [a.clone() for _ in range(32)]
        assert FAKE.fake_used_bytes(0) <= before + 8 * NBYTES + 4 * MIB  # PyTorch takes 2 MiB at a time
        assert run.num_evictions >= 24
        for tensor in made:
            assert_bytes(tensor)
        assert run.peak_bytes <= run.budget_bytes
        del made
    assert run.num_rematerializations >= 24
    with pytest.raises(remint.BudgetError, match="on cuda:0 is too small"), remint.budget("64KiB", device="cuda"):
        torch.empty(MIB, device="cuda")


# ── Eviction and replay ──


def test_chaos():
    a, b = numbers(), numbers(OTHER)
    with remint.budget("8MiB", device="cuda", chaos=True, check=True) as run:
        x = a.clone()
        for _ in range(10):
            x = x.clone()
        halves = [x[: SIZE // 2].clone(), x[SIZE // 2 :].clone()]
        x.copy_(b)
        y = torch.empty(SIZE, device="cuda")
        y.copy_(a)
        assert_bytes(y)
        assert_bytes(x, OTHER)
        assert_bytes(halves[0], BASE[: SIZE // 2])
        assert_bytes(halves[1], BASE[SIZE // 2 :])
    assert run.num_rematerializations > 10
    assert_bytes(y)


def test_the_backward_pass_and_an_optimizer():
    """Numbers mean nothing; ops, sizes, autograd's thread for the device, and the books do."""
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64), torch.nn.ReLU()] * 6).cuda()
    optimizer = torch.optim.Adam(model.parameters())

    def train(**options):
        with remint.budget(device="cuda", check=True, **options) as run:
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.randn(8192, 64, device="cuda")).square().mean().backward()
                optimizer.step()
        return run

    peak = train(budget="256MiB").peak_bytes
    # A large part of it is the workspace of cuBLAS.
    run = train(budget=peak - 8 * MIB, max_slowdown=None)
    assert run.peak_bytes <= peak - 8 * MIB
    assert run.num_rematerializations > 0


def test_random_numbers_are_those_of_the_first_time():
    generator = torch.cuda.default_generators[0]
    with remint.budget("8MiB", device="cuda") as run:
        torch.cuda.manual_seed(7)
        x = torch.nn.functional.dropout(torch.zeros(SIZE, device="cuda"), 0.5)
        torch.nn.functional.dropout(x, 0.5)
        offset = generator.get_offset()
        remint.evict(x)
        remint.materialize(x)
        assert run.num_rematerializations > 0
        assert generator.get_offset() == offset
        assert generator.initial_seed() == 7


def test_moves():
    a = numbers()
    with remint.budget(7 * NBYTES, device="cuda", learn=False) as run:
        # Copies of the host's memory cannot be recomputed: they stay, and can only be moved.
        kept = {i: (BASE + i).to("cuda") for i in range(7)}
        for i in (1, 3, 5):
            del kept[i]
        wide = torch.empty(2 * SIZE, device="cuda")
        wide[:SIZE].copy_(a)
        assert run.moved_bytes > 0
        for i, tensor in kept.items():
            assert_bytes(tensor, BASE + i)
        assert_bytes(wide[:SIZE])


# ── Waits of the host, and events ──


def test_a_budget_never_makes_the_host_wait():
    a = numbers()

    def work():
        x = a
        made = [x := x.clone() for _ in range(20)]
        return made[-1]

    torch.cuda.synchronize()
    waits = FAKE.fake_num_host_waits()
    work()
    without = FAKE.fake_num_host_waits() - waits
    with remint.budget("4MiB", device="cuda", learn=False) as run:
        waits = FAKE.fake_num_host_waits()
        x = work()
        assert FAKE.fake_num_host_waits() - waits == without
    assert run.num_ops >= 20
    assert_bytes(x)


def test_timing_events_are_read():
    a = numbers()
    with remint.budget("4MiB", device="cuda") as run:
        for _ in range(10):
            b = a.clone()
            b.sum().item()
    assert run.computed_seconds > 0


# ── Several devices ──


def test_two_devices_and_the_host():
    with remint.budget({"cuda:0": "4MiB", "cuda:1": "4MiB", "cpu": "4MiB"}, chaos=True, check=True) as run:
        host = BASE.clone()
        zero = host.to("cuda:0").clone()
        one = zero.to("cuda:1").clone()
        back = one.to("cuda:0", non_blocking=True).clone()
        pinned = host.pin_memory().to("cuda:1", non_blocking=True)
        for found in (zero, one, back, pinned, one.cpu()):
            assert_bytes(found)
    assert all(figures.num_rematerializations > 0 for figures in run.devices.values())
    assert list(run.devices) == ["cuda:0", "cuda:1", "cpu"]
