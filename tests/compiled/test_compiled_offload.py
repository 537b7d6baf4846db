"""Compiled steps with a tier: the same bits, inside the budget, and no copy that outlives its use."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import remint
from remint import Offload
from remint.compiled.compilation import Compilation
from remint.compiled.options import Options
from remint.compiled.tier_copies import TierCopies, arrived
from tests.compiled.test_compiled_bits import case, reference
from tests.support.stepping import assert_same_bits, train

# So quick that everything that waits goes there.
FAST = Offload(bytes="1GiB", bandwidth="1TB", latency=0)


def blocks(count: int = 6) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1)) for _ in range(count)]
    return nn.Sequential(*layers)


def compiled(model, percent: int, offload=FAST, **options):
    given = {"costs": "estimate", "cache": False, "planner": "demand", "progress": False, **options}
    return remint.compile(model, budget=f"{percent}%", offload=offload, **given)


def step(model, x) -> list[torch.Tensor]:
    torch.manual_seed(1)
    loss = model(x).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


def copies_of(model) -> TierCopies:
    found = model.remint_plan._compilation.copies
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "percent"),
    [("mlp", 50), ("mlp", 25)]
    + [
        pytest.param(name, percent, marks=pytest.mark.slow)
        for name in ("resnet", "transformer")
        for percent in (50, 25)
    ],
)
def test_same_bits_inside_the_budget(name, percent, cache):
    expected = reference(name)
    torch._dynamo.reset()
    model, loss_of = case(name)
    planned = remint.compile(
        loss_of, budget=f"{percent}%", planner="demand", time_limit=20, cache=cache, progress=False, offload=FAST
    )
    found = train(model, planned)
    assert_same_bits(expected, found)
    *_, plan = planned.remint_plan
    assert plan.fetched_bytes > 0
    assert found.peak_bytes <= plan.graph.peak_bytes * percent // 100
    assert found.peak_bytes <= 1.03 * plan.peak_bytes


def test_what_the_plan_says_is_what_runs():
    x = torch.randn(256, 32)
    planned = compiled(blocks(), 25)
    for number in range(1, 4):
        found = step(planned, x)
        (plan,) = planned.remint_plan
        copies = copies_of(planned)
        assert plan.offloaded_bytes > 0
        assert (copies.offloaded_bytes, copies.fetched_bytes) == (
            number * plan.offloaded_bytes,
            number * plan.fetched_bytes,
        )
        planned.zero_grad()
    del found
    gc.collect()
    assert copies.used_bytes == 0


def test_copies_go_with_a_step_that_never_ends():
    x = torch.randn(256, 32)
    planned = compiled(blocks(), 25)
    step(planned, x)
    loss = planned(x).square().mean()
    assert copies_of(planned).used_bytes > 0
    del loss
    gc.collect()
    assert copies_of(planned).used_bytes == 0


def test_copies_go_with_a_step_that_fails():
    x = torch.randn(256, 32)
    model = blocks()
    expected = step(copy.deepcopy(model), x)
    planned = compiled(model, 25)

    def fail(gradient):
        raise ZeroDivisionError

    for _ in range(2):
        result = planned(x)
        result.register_hook(fail)
        with pytest.raises(ZeroDivisionError):
            result.sum().backward()
        del result
        gc.collect()
        assert copies_of(planned).used_bytes == 0
    planned.zero_grad()
    # aot_eager is what has the same bits; here the gradients are those of another run of the plan.
    first = [each.clone() for each in step(planned, x)]
    planned.zero_grad()
    assert all(map(torch.equal, first, step(planned, x)))
    assert torch.allclose(first[0], expected[0])


def test_a_tier_that_is_too_small_for_overlapping_steps_says_so():
    x = torch.randn(256, 32)
    planned = compiled(blocks(), 25)
    step(planned, x)
    planned.zero_grad()
    copies = copies_of(planned)
    copies._capacity = 2 * planned.remint_plan[0].offloaded_bytes
    losses: list[torch.Tensor] = []

    def overlap() -> None:
        for _ in range(8):
            losses.append(planned(x).sum())

    with pytest.raises(remint.BudgetError, match="steps that overlap need more"):
        overlap()
    losses.clear()
    gc.collect()
    assert copies.used_bytes == 0
    step(planned, x)


FULL_DISK = """
    import resource, sys, torch, remint
    from torch import nn
    x = torch.randn(512, 64)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(8)])
    offload = remint.Offload(bytes="1GiB", path=sys.argv[1], bandwidth="1TB", latency=0)
    planned = remint.compile(model, budget="50%", time_limit=3, costs="estimate", cache=False, offload=offload)
    planned(x).square().mean().backward()
    before = [p.grad.clone() for p in model.parameters()]
    planned.zero_grad()
    most = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    copies = planned.remint_plan._compilation.copies
    resource.setrlimit(resource.RLIMIT_FSIZE, (copies._places._end // 2, most[1]))
    try:
        planned(x).square().mean().backward()
    except remint.BudgetError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, most)
    planned.zero_grad()
    planned(x).square().mean().backward()
    assert all(torch.equal(p.grad, b) for p, b in zip(model.parameters(), before))
    import os
    print("files", os.listdir(sys.argv[1]))
"""


@pytest.mark.slow
def test_a_full_disk_is_a_clear_error_and_the_next_step_works(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "took no more (File too large)" in done.stdout
    assert "files []" in done.stdout


def test_a_read_error_is_raised_where_the_tensor_is_read(tmp_path):
    copies = TierCopies(Offload(bytes="16MiB", path=tmp_path, bandwidth="1GB"))
    ticket = copies.offload(torch.arange(100_000.0))
    copies.written(ticket)
    os.ftruncate(copies._file, 0)
    with pytest.raises(RuntimeError, match="the file is shorter than it was"):
        arrived(copies.fetch(ticket))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)[1:],
        torch.randn(6, 5).t()[:, ::2],
        torch.randn(0, 3),
        torch.tensor(3, dtype=torch.int16),
        torch.randn(3, 1).expand(3, 1000),
    ],
    ids=["channels last", "transposed", "empty", "number", "expanded"],
)
def test_a_copy_has_the_bytes_and_the_look(tensor):
    copies = TierCopies(Offload(bytes="16MiB", bandwidth="1GB"))
    expected = tensor.clone()
    ticket = copies.offload(tensor).detach()  # autograd detaches what it saves
    gc.collect()
    found = arrived(copies.fetch(ticket))
    assert torch.equal(found, expected)
    assert (found.stride(), found.storage_offset()) == (tensor.stride(), tensor.storage_offset())


def test_a_bandwidth_that_is_not_given_is_measured():
    assert TierCopies(Offload(bytes="64MiB")).tier.bandwidth > 1e6


def test_a_plan_with_a_tier_is_kept(cache):
    x = torch.randn(256, 32)
    first = compiled(blocks(), 30, cache=cache)
    step(first, x)
    torch._dynamo.reset()
    second = compiled(blocks(), 30, cache=cache)
    step(second, x)
    assert first.remint_plan[0].steps == second.remint_plan[0].steps
    assert second.remint_plan[0].fetched_bytes > 0


def test_mistakes_are_explained():
    with pytest.raises(ValueError, match="knows no tier"):
        Options(budget="50%", planner="checkmate", offload="1GiB")
    with pytest.raises(ValueError, match="inductor"):
        Options(budget="50%", inner="inductor", offload="1GiB")
    with pytest.raises(ValueError, match="not understood"):
        Options(budget="50%", offload="somewhere")
    assert Options.of({"budget": "50%", "offload": "1GiB"}).offload == Offload(bytes="1GiB")
    assert not Compilation(Options(budget="50%", offload="1GiB"), fallback=True)._may_fall_back


def test_a_model_of_several_graphs_is_refused():
    class Breaking(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = blocks(2), blocks(2)

        def forward(self, x):
            x = self.first(x)
            torch._dynamo.graph_break()
            return self.second(x)

    planned = compiled(Breaking(), 50)
    with pytest.raises(remint.BudgetError, match="captures as one graph"):
        planned(torch.randn(256, 32)).sum().backward()


def test_a_copy_of_a_compiled_model_compiles_with_the_same_tier():
    x = torch.randn(256, 32)
    again = copy.deepcopy(compiled(blocks(), 25))
    step(again, x)
    assert again.remint_plan[0].fetched_bytes > 0
