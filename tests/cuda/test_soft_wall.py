"""`wall="soft"` on the fake runtime: PyTorch's allocator stays, and asks for memory when it runs out."""

import pytest
import torch

import remint
from tests.cuda.test_backend import BASE, FAKE, MIB, NBYTES, OTHER, SIZE, assert_bytes, numbers


def soft(budget, **options):
    return remint.budget(budget, device="cuda", wall="soft", learn=False, **options)


def blocks_of_pytorch():
    return {
        block["address"]: block["requested_size"]
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def test_tensors_are_blocks_of_pytorchs_allocator():
    a = numbers()
    before = torch.cuda.memory_allocated()
    with soft("64MiB") as run:
        made = [a.clone() for _ in range(4)]
        # There is no arena: each tensor is a block by itself.
        assert torch.cuda.memory_allocated() == before + 4 * NBYTES
        assert all(blocks_of_pytorch()[tensor.data_ptr()] == NBYTES for tensor in made)
        assert run.used_bytes == 4 * NBYTES
        assert run.outside_bytes == 0
        assert torch.cuda.get_allocator_backend() == "native"
        del made
        assert torch.cuda.memory_allocated() == before


def test_a_budget_leaves_ordinary_tensors_where_they_are():
    a = numbers()
    before = torch.cuda.memory_allocated()
    with soft("1MiB") as run:
        kept, evicted = a.clone(), a.clone()
        address = kept.data_ptr()
        remint.evict(evicted)
    assert run.num_rematerializations == 1
    assert kept.data_ptr() == address
    assert torch.cuda.memory_allocated() == before + 2 * NBYTES
    assert_bytes(kept)
    assert_bytes(evicted)
    del kept, evicted
    assert torch.cuda.memory_allocated() == before


def test_evicts_at_the_budget():
    a = numbers()
    before = torch.cuda.memory_allocated()
    with soft(8 * NBYTES) as run:
        made = []
        for _ in range(32):
            made.append(a.clone())
            assert torch.cuda.memory_allocated() <= before + 8 * NBYTES
        assert run.num_evictions >= 24
        for tensor in made:
            assert_bytes(tensor)
        assert run.peak_bytes <= run.budget_bytes
        del made
    assert run.num_rematerializations >= 24


def test_evicts_for_memory_that_remint_does_not_manage():
    """A factory's memory is not seen. PyTorch's allocator asks before it takes more from the device."""
    a = torch.ones(MIB, device="cuda")
    with soft("64MiB") as run:
        made = [a.clone() for _ in range(12)]
        assert run.num_evictions == 0
        outside = [torch.empty(8 * MIB, device="cuda") for _ in range(2)]
        assert run.outside_bytes >= 64 * MIB
        evicted = run.num_evictions
        assert evicted > 0
        assert not all(remint.is_resident(tensor) for tensor in made)
        del outside, made


def test_evicts_when_the_device_is_full():
    """The budget is larger than the device has free, as it is when other programs use it."""
    a = torch.ones(8 * MIB, device="cuda")
    with soft("4GiB") as run:
        made = [a.clone() for _ in range(48)]  # 1.5 GiB on a device of 1 GiB
        assert run.num_evictions > 0
        assert FAKE.fake_used_bytes(0) <= 1 << 30
        del made


def test_a_kernel_that_finds_no_memory_runs_again():
    """PyTorch's allocator does not say how much it needs: a large request can fail though much can be evicted."""
    torch.cuda.empty_cache()
    large = torch.empty(100 * MIB, device="cuda")  # 400 MiB
    small = torch.empty(8 * MIB, device="cuda")
    with soft("4GiB") as run:
        made = [small.clone() for _ in range(14)]  # 448 MiB
        assert run.num_evictions == 0
        copy = large.clone()
        assert run.num_evictions == 14
        del made
    assert copy.numel() == large.numel()
    with pytest.raises(torch.OutOfMemoryError), soft("4GiB"):
        torch.empty(1 << 30, device="cuda").clone()


def test_chaos():
    a, b = numbers(), numbers(OTHER)
    with soft("8MiB", chaos=True, check=True) as run:
        x = a.clone()
        for _ in range(10):
            x = x.clone()
        halves = [x[: SIZE // 2].clone(), x[SIZE // 2 :].clone()]
        y = x.clone()
        y.copy_(b)
        assert_bytes(y, OTHER)
        z = a.clone()
        z[: SIZE // 2].copy_(b[: SIZE // 2])
        assert_bytes(x)
        assert_bytes(halves[0], BASE[: SIZE // 2])
        assert_bytes(halves[1], BASE[SIZE // 2 :])
        assert_bytes(z, torch.cat([OTHER[: SIZE // 2], BASE[SIZE // 2 :]]))
    assert run.num_rematerializations > 10
    assert_bytes(y, OTHER)


def test_the_backward_pass_and_an_optimizer():
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64), torch.nn.ReLU()] * 6).cuda()
    optimizer = torch.optim.Adam(model.parameters())

    def train(budget):
        with soft(budget, check=True, max_slowdown=None) as run:
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(8192, 64, device="cuda")).square().mean().backward()
                optimizer.step()
        return run

    peak = train("256MiB").peak_bytes
    run = train(peak * 6 // 10)
    assert run.peak_bytes <= peak * 6 // 10
    assert run.num_rematerializations > 0


def test_a_compiled_function():
    @torch.compile(backend="aot_eager")
    def twice(x):
        return x.clone().clone()

    a = numbers()
    with soft(4 * NBYTES) as run:
        made = [twice(a) for _ in range(8)]
        for tensor in made:
            assert_bytes(tensor)
        del made
    assert run.num_rematerializations > 0


# ── Errors ──


def test_what_cannot_be_asked():
    with pytest.raises(ValueError, match='wall="soft" is for CUDA'), remint.budget("1MiB", device="cpu", wall="soft"):
        pass
    both = {"cuda": "1MiB", "cpu": "1MiB"}
    with pytest.raises(ValueError, match='wall="soft" is for CUDA'), remint.budget(both, wall="soft"):
        pass
    with pytest.raises(ValueError, match='leave overflow="spill" out'):
        remint.budget("1MiB", wall="soft", overflow="spill")
    with pytest.raises(remint.BudgetError, match="too small"), soft("64KiB"):
        torch.empty(MIB, device="cuda").clone()
