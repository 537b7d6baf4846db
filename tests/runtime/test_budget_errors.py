"""What a `BudgetError` says: three lines, and a budget that is a true lower bound, or is called a guess."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

import remint
from remint.units import parse_budget

pytestmark = pytest.mark.runtime


def train_linear(budget: int) -> None:
    torch.manual_seed(0)
    with remint.budget(budget):
        model = torch.nn.Sequential(*(torch.nn.Linear(48, 48) for _ in range(6)))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(256, 48)).square().mean().backward()
            optimizer.step()


def train_convolutions(budget: int) -> None:
    torch.manual_seed(0)
    with remint.budget(budget):
        layers = [torch.nn.Conv2d(4, 4, 3, padding=1) for _ in range(4)]
        model = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.BatchNorm2d(4))))
        model(torch.randn(4, 4, 16, 16)).square().mean().backward()


def keep_everything(budget: int) -> None:
    with remint.budget(budget):
        kept = [torch.full((1000,), float(i)).numpy() for i in range(30)]
        assert len(kept) == 30


@pytest.mark.parametrize("train", [train_linear, train_convolutions, keep_everything])
def test_following_the_errors_leads_to_a_budget_that_works(train: Callable[[int], None]) -> None:
    budget, tried = 16 << 10, 0
    while True:
        try:
            train(budget)
            break
        except remint.BudgetError as caught:
            error = caught
        tried += 1
        assert tried < 100
        happened, holds, advice = str(error).splitlines()
        assert happened.startswith("the budget of ")
        assert holds.startswith("In the way: ")
        named = re.search(r"(?:at least|try) ([\d.]+ [KMG]?i?B)", advice)
        assert named is not None
        better = parse_budget(named[1])
        assert better > budget, advice
        assert error.min_budget_bytes is not None
        if "at least" in advice:
            assert "lower bound" in advice
            assert budget < error.min_budget_bytes <= better
            # Less is not enough: it is a bound, not a guess.
            with pytest.raises(remint.BudgetError):
                train(error.min_budget_bytes - 64)
        else:
            assert "not known; try" in advice
        assert "`remint advise`" in advice
        budget = better
    assert tried > 0


def test_small_figures_are_not_rounded_away() -> None:
    with pytest.raises(remint.BudgetError) as caught, remint.budget("15MiB"):
        torch.ones(15 * 2**18 + 16)  # 64 bytes more than fit
    happened, _, advice = str(caught.value).splitlines()
    assert "15.0 MiB" in happened
    assert "at least 15.1 MiB" in advice
    with pytest.raises(remint.BudgetError) as caught, remint.budget(4096):
        torch.ones(2**11)
    assert "asked for 8.0 KiB" in str(caught.value)
    assert "at least 8.0 KiB" in str(caught.value)
    torch.ones(1)
    with remint.budget("8KiB"):
        torch.ones(2**11)


def test_soft_walls_are_for_cuda() -> None:
    with pytest.raises(ValueError, match=r'wall="soft" is for CUDA.*of cpu has no way'):
        remint.budget("1MiB", device="cpu", wall="soft").__enter__()
    with pytest.raises(ValueError, match='wall is "hard" or "soft"'):
        remint.budget("1MiB", wall="firm")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='leave overflow="spill" out'):
        remint.budget("1MiB", wall="soft", overflow="spill")
    with remint.budget("1MiB", device="cpu"):
        torch.ones(1000) + 1
