"""The budget that a `BudgetError` names is trained in again: it works, or the text called it a bound or an estimate."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import remint
from remint.units import parse_budget

pytestmark = pytest.mark.runtime

STEPS = 7
# The same cost for all ops, so that a failure can be repeated: near the smallest budget measured costs decide.
COSTS = [1e-3] * 20_000


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, c = torch.zeros(64, 16), torch.zeros(64, 16)
        for _ in range(10):
            h, c = self.cell(x, (h, c))
        return h


def convolutions() -> nn.Module:
    parts = [(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)) for _ in range(5)]
    return nn.Sequential(*(part for layer in parts for part in layer))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(*(nn.Linear(48, 48) for _ in range(8))), (256, 48)),
    "activations": (
        lambda: nn.Sequential(*(part for _ in range(5) for part in (nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32)))),
        (256, 32),
    ),
    "convolutions": (convolutions, (4, 4, 16, 16)),
    "cells": (Cells, (64, 16)),
}


def train(name: str, budget: int, max_slowdown: float) -> int:
    """Train some steps with everything inside the budget, and return the peak."""
    torch.manual_seed(0)
    make, shape = MODELS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that steps are slow, which is what is asked for here
        with remint.budget(budget, max_slowdown=max_slowdown, costs=COSTS, plan=False) as run:
            model, x = make(), torch.randn(shape)
            optimizer = torch.optim.SGD(model.parameters(), 0.01)
            for _ in range(STEPS):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
    return run.peak_bytes


@functools.cache
def peak(name: str) -> int:
    return train(name, 1 << 28, 10.0)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(sorted(MODELS)),
    percent=st.integers(5, 80),
    max_slowdown=st.sampled_from([1.5, 3.0, 10.0]),
)
def test_the_budget_that_an_error_names(name: str, percent: int, max_slowdown: float) -> None:
    budget, tried = peak(name) * percent // 100, 0
    while True:
        try:
            train(name, budget, max_slowdown)
            break
        except remint.BudgetError as caught:
            error = caught
        text = str(error)
        named = re.search(r"(at least|[Tt]ry|about) ([\d.]+ [KMG]?i?B)", text)
        assert named is not None, text
        better = parse_budget(named[2])
        assert better > budget, text
        assert (named[1] == "about") == (error.known_budget_bytes is not None)
        assert any(words in text for words in ("lower bound", "not known", "an estimate"))
        if named[1] == "at least":
            assert error.min_budget_bytes is not None
            assert budget < error.min_budget_bytes <= better
        budget, tried = better, tried + 1
        assert tried < 40, text
    # Nobody is led past what the program takes without a budget, but for what blocks leave between them.
    assert tried == 0 or budget <= 1.5 * peak(name)
