"""Steps of training, every number that comes out of them, and the bytes that they allocate."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from remint.capture.profiled_peak import peak_bytes


@dataclass
class Trained:
    losses: list[torch.Tensor]
    state: dict[str, torch.Tensor | None]
    peak_bytes: int


def train(model: nn.Module, loss_of: Callable[[], torch.Tensor], *, steps: int = 2) -> Trained:
    """Train, and measure the last step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    torch.manual_seed(1)
    losses, peak = [], 0
    for number in range(steps):
        optimizer.zero_grad()
        if number + 1 < steps:
            loss = step(loss_of)
        else:
            loss, peak = measured(lambda: step(loss_of))
        losses.append(loss)
        optimizer.step()
    state: dict[str, torch.Tensor | None] = {k: v.detach().clone() for k, v in model.state_dict().items()}
    state |= {f"{k}.grad": p.grad for k, p in model.named_parameters()}
    return Trained(losses, state, peak)


def step(loss_of: Callable[[], torch.Tensor]) -> torch.Tensor:
    loss = loss_of()
    loss.backward()
    return loss.detach()


def measured(work: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, int]:
    """Return what `work` returns, and the most bytes that it had from the allocator at once."""
    gc.collect()  # what earlier steps left in cycles must not be freed in this one
    gc.disable()
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as run:
            result = work()
    finally:
        gc.enable()
    return result, peak_bytes(run)


def assert_same_bits(expected: Trained, found: Trained) -> None:
    for number, (a, b) in enumerate(zip(expected.losses, found.losses, strict=True)):
        assert torch.equal(a, b), f"loss of step {number}: {a.item()!r} and {b.item()!r}"
    assert expected.state.keys() == found.state.keys()
    for name, value in expected.state.items():
        other = found.state[name]
        assert (value is None) == (other is None), name
        assert value is None or torch.equal(value, other), name
