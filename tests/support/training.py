"""Training with and without a budget, and the comparison of every number that comes out."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

import remint

# Costs do not come from the clock: a training evicts the same tensors every time. No training has more ops.
COSTS = [1e-5] * 100_000

# A model, and a function that computes its loss.
Case = tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]


@dataclass
class Outcome:
    losses: list[torch.Tensor]
    state: dict[str, torch.Tensor]
    run: remint.online.LiveRun | None


def optimizer_for(name: str, model: nn.Module) -> torch.optim.Optimizer:
    match name:
        case "sgd":
            return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        case "adam":
            return torch.optim.Adam(model.parameters(), lr=1e-3)
        case "adam-one-by-one":
            return torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)
        case "adam-foreach":
            return torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)
        case "adam-fused":
            return torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
        case "adamw":
            return torch.optim.AdamW(model.parameters(), lr=1e-3)
    raise ValueError(name)


def train(
    case: Callable[[], Case], *, optimizer: str = "adam", steps: int = 3, device: str = "cpu", **options: object
) -> Outcome:
    """Train for a few steps, in a budget if options for one are given. The outcome is on the CPU."""
    with torch.device(device) if device != "cpu" else contextlib.nullcontext():
        outcome = _train(case, optimizer, steps, options and {"device": device} | options)
    return Outcome([loss.cpu() for loss in outcome.losses], {k: v.cpu() for k, v in outcome.state.items()}, outcome.run)


def _train(case: Callable[[], Case], optimizer: str, steps: int, options: dict[str, object]) -> Outcome:
    torch.manual_seed(0)
    model, loss_of = case()
    steppable = optimizer_for(optimizer, model)
    losses: list[torch.Tensor] = []

    def go() -> None:
        torch.manual_seed(1)
        for _ in range(steps):
            steppable.zero_grad()
            loss = loss_of(model)
            loss.backward()
            losses.append(loss.detach())
            steppable.step()

    run = None
    if options:
        with remint.budget(**{"costs": COSTS} | options) as run:  # type: ignore[arg-type]
            go()
    else:
        go()
    state = {name: value.detach() for name, value in model.state_dict().items()}
    state |= {f"{name}.grad": p.grad for name, p in model.named_parameters() if p.grad is not None}
    for index, (_, slots) in enumerate(copy.copy(steppable.state_dict()["state"]).items()):
        state |= {f"optimizer.{index}.{key}": value for key, value in slots.items() if torch.is_tensor(value)}
    return Outcome(losses, state, run)


def assert_same_bits(expected: Outcome, found: Outcome) -> None:
    assert len(expected.losses) == len(found.losses)
    for step, (a, b) in enumerate(zip(expected.losses, found.losses, strict=True)):
        assert torch.equal(a, b), f"loss of step {step}: {a.item()!r} without a budget, {b.item()!r} in one"
    assert expected.state.keys() == found.state.keys()
    for name, value in expected.state.items():
        assert torch.equal(value, found.state[name]), name
