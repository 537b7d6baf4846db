"""Steps that no plan covers run in the runtime, inside the same budget, with the bits of `aot_eager`."""

import gc
import weakref

import pytest
import torch
from torch import nn

import remint
from tests.compiled.test_steps import QUICK, mixtral, trained
from tests.support.stepping import assert_same_bits


@torch._dynamo.disable
def between(x: torch.Tensor) -> torch.Tensor:
    """Code that no graph has: its saved tensors are larger than those of the graphs."""
    return nn.functional.gelu(torch.tanh(x * 2)).square() + x


class BrokenBlock(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.ReLU())

    def forward(self, x):
        return between(self.inner(x)) + x


def broken_chain():
    model = nn.Sequential(*(BrokenBlock(64) for _ in range(12)))
    x = torch.randn(256, 64)
    return model, lambda model: model(x).square().mean()


@pytest.mark.parametrize("make", [broken_chain, mixtral])
def test_code_between_graphs_is_inside_the_budget(make):
    if make is mixtral:
        pytest.importorskip("transformers")
    _, expected = trained(make, lambda model: torch.compile(model, backend="aot_eager"), steps=6)
    compiled, found = trained(make, lambda model: remint.compile(model, budget="60%", **QUICK), steps=6)
    assert_same_bits(expected, found)
    assert "between its graphs" in compiled.remint_plan.fallback_reason
    run = compiled.remint_plan.run
    # The percentage is one of the whole step, as measured. Blocks are aligned, and Mixtral's steps differ in size.
    assert 0.55 * expected.peak_bytes < run.budget_bytes < 0.65 * expected.peak_bytes
    assert run.peak_bytes <= run.budget_bytes
    assert run.num_rematerializations > 0
    assert run.learning.learned.num_steps > 0
    assert "runtime" in str(compiled.remint_plan)


def test_many_shapes_are_inside_the_budget():
    sizes = [64 * n for n in range(30, 12, -1)]

    def make():
        model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(12)))
        batches = iter([torch.randn(size, 32) for size in sizes])
        return model, lambda model: model(next(batches)).square().mean()

    budget = 1500 * 1024
    _, expected = trained(make, lambda model: torch.compile(model, backend="aot_eager", dynamic=False), steps=18)
    compiled, found = trained(make, lambda model: remint.compile(model, budget=budget, **QUICK), steps=18)
    assert_same_bits(expected, found)
    run = compiled.remint_plan.run
    assert "shapes" in compiled.remint_plan.fallback_reason
    assert run.budget_bytes == budget
    assert run.peak_bytes <= budget
    assert run.num_rematerializations > 0


class Telling(nn.Module):
    """Returns what all its layers made. A plan has to keep that, the runtime does not if the caller drops it."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(12))

    def forward(self, x):
        told = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            told.append(x)
        return x.square().mean(), told


def telling():
    x = torch.randn(1024, 64)
    return Telling(), lambda model: model(x)[0]


@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_percentage_that_no_plan_reaches(fullgraph):
    _, expected = trained(telling, lambda model: torch.compile(model, backend="aot_eager"), steps=5)
    compiled, found = trained(
        telling, lambda model: remint.compile(model, budget="45%", fullgraph=fullgraph, **QUICK), steps=5
    )
    assert_same_bits(expected, found)
    assert "no plan" in compiled.remint_plan.fallback_reason
    run = compiled.remint_plan.run
    assert run.peak_bytes <= run.budget_bytes
    assert run.num_rematerializations > 0
    with pytest.raises(remint.BudgetError, match="smallest budget with a known plan"):
        trained(telling, lambda model: remint.compile(model, budget="45%", fallback=False, **QUICK), steps=3)


def test_what_even_the_runtime_cannot_hold_is_an_error():
    with pytest.raises(remint.BudgetError, match=r"the budget of .* is too small"):
        trained(telling, lambda model: remint.compile(model, budget="4%", **QUICK), steps=4)


def compiled_telling():
    torch._dynamo.reset()
    model, loss_of = telling()
    return model, remint.compile(model, budget="45%", fullgraph=True, **QUICK), loss_of


def test_only_the_step_is_inside():
    model, compiled, loss_of = compiled_telling()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        loss_of(compiled).backward()
        run = compiled.remint_plan.run
        num_ops, used = run.num_ops, run.used_bytes
        assert used >= sum(p.grad.nbytes for p in model.parameters())
        # The optimizer, its state and other calls are outside.
        optimizer.step()
        others = torch.randn(1000).square()
        with torch.no_grad():
            loss_of(compiled)
        assert (run.num_ops, run.used_bytes) == (num_ops, used)
        optimizer.zero_grad()
        assert run.used_bytes < used
    assert others.sum() > 0


def test_tensors_outlive_the_model():
    model, compiled, loss_of = compiled_telling()
    loss_of(compiled).backward()
    gradients = [p.grad for p in model.parameters()]
    copies = [gradient.clone() for gradient in gradients]
    fallback = weakref.ref(compiled.remint_plan._compilation.fallback)
    session = compiled.remint_plan.run._session
    del model, compiled, loss_of
    torch._dynamo.reset()
    gc.collect()
    assert fallback() is None
    assert session.closed
    assert all(map(torch.equal, gradients, copies))
