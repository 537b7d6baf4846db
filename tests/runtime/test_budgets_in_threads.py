"""Threads with a budget each, at the same time: every one gets the numbers of a run without a budget."""

import threading

import pytest
import torch

import remint

pytestmark = [pytest.mark.runtime, pytest.mark.threads]

COSTS = [1e-6] * 10_000
THREADS = 3
ROUNDS = 3


def step(weight):
    x = weight.clone().requires_grad_()
    y = x
    for _ in range(20):
        y = torch.tanh(y @ weight) + y * 0.5
    y.sum().backward()
    return y.detach(), x.grad


def test_budgets_do_not_disturb_each_other():
    weights = [torch.randn(64, 64, generator=torch.Generator().manual_seed(seed)) for seed in range(THREADS)]
    expected = [step(weight) for weight in weights]
    together, same, counts = threading.Barrier(THREADS), [0] * THREADS, [0] * THREADS

    def work(thread):
        for _ in range(ROUNDS):
            together.wait()
            with remint.budget("160KiB", costs=COSTS) as run:
                found = step(weights[thread])
            same[thread] += all(map(torch.equal, expected[thread], found))
            counts[thread] += run.num_rematerializations > 0 and run.peak_bytes <= run.budget_bytes

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same == counts == [ROUNDS] * THREADS
