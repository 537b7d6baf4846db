"""Recipes of ops that look alike share what they have in common: each op must run again with its own arguments."""

import pytest
import torch
from torch.nn import functional

import remint

pytestmark = pytest.mark.runtime


def test_ops_that_look_alike_run_again_with_their_own_arguments():
    torch.manual_seed(0)
    x = torch.randn(48, 48)
    y = torch.randn(48, 48)
    # Neighbours are calls of one operator on tensors of the same sizes and types, which differ in one thing.
    calls = [
        lambda: x.sum(0),
        lambda: x.sum(1),
        lambda: x.roll(1, 0),
        lambda: x.roll(2, 0),
        lambda: x.roll(2, 1),
        lambda: torch.add(x, y, alpha=2),
        lambda: torch.add(x, y, alpha=3),
        lambda: torch.full_like(x, 0.0).copysign(0.0),
        lambda: torch.full_like(x, 0.0).copysign(-0.0),
        lambda: torch.clamp(x, min=0.5),
        lambda: torch.clamp(x, max=0.5),
        lambda: torch.clamp(x, min=-0.0),
        lambda: torch.clamp(x, min=0.0),
        lambda: functional.gelu(x, approximate="none"),
        lambda: functional.gelu(x, approximate="tanh"),
        lambda: x.t().exp(),
        lambda: x.exp(),
        lambda: torch.softmax(x, 0),
        lambda: torch.softmax(x, 1),
        lambda: torch.cat([x, y]),
        lambda: torch.cat([y, x]),
        lambda: torch.cat([x, x]),
        lambda: torch.stack([x[:24], y[24:]]),
        lambda: torch.stack([x[24:], y[:24]]),
        lambda: x[:24].exp(),
        lambda: x[24:].exp(),
        lambda: x * 2.0,
        lambda: x * 3.0,
        lambda: x.to(torch.float64),
        lambda: x.to(torch.int64),
        lambda: torch.var_mean(x, 0, correction=0)[0],
        lambda: torch.var_mean(x, 0, correction=1)[0],
        lambda: functional.dropout(x, 0.5),
        lambda: functional.dropout(x, 0.5),
        lambda: torch.addmm(y, x, y),
        lambda: torch.addmm(x, x, y),
        lambda: torch.addmm(x, y, y, beta=0.5),
    ]
    torch.manual_seed(1)
    expected = [call() for call in calls]
    torch.manual_seed(1)
    with remint.budget("64MiB", learn=False, check=True):
        found = [call() for call in calls]
        # More than once: the second time all forms are known.
        for _ in range(2):
            for tensor in found:
                assert remint.evict(tensor)
            for tensor, bits in zip(found, expected, strict=True):
                assert tensor.dtype == bits.dtype
                assert torch.equal(tensor.signbit(), bits.signbit())
                assert torch.equal(tensor, bits)
