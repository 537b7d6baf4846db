"""One training step with and without a budget: is it the same, bit for bit?"""

from __future__ import annotations

import time

import torch

from remint.runtime.budget import budget
from remint.units import format_bytes


def self_test() -> str:
    """Train a small network inside a budget; return what came of it, raise if the bits differ.

    >>> self_test().startswith("the same bits")
    True
    """
    began = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        return _compare(began)


def _compare(began: float) -> str:
    plain, peak = _gradients("1GiB")
    inside, used = _gradients(int(0.6 * peak))
    if not all(torch.equal(a, b) for a, b in zip(plain, inside, strict=True)):
        raise RuntimeError("gradients inside a budget differ from those without: please report this")
    seconds = time.perf_counter() - began
    return f"the same bits in {format_bytes(used)} as in {format_bytes(peak)}, in {seconds:.2f} s"


def _gradients(nbytes: int | str) -> tuple[list[torch.Tensor], int]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(12)))
    x = torch.randn(1024, 64)
    with budget(nbytes) as run:
        torch.autograd.backward(model(x).square().mean())
    gradients = [weight.grad for weight in model.parameters()]
    return [gradient for gradient in gradients if gradient is not None], run.peak_bytes
