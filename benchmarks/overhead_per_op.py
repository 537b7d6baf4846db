"""What an op costs more inside a budget that is never short: microseconds of CPU time, on tensors of 8 x 8.

Both sides take turns, each in a thread of its own: other threads are not touched by a budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import remint
from report import FULL, markdown, publish

COUNT = 5_000
TURNS = 30 if FULL else 10


class Counter(TorchDispatchMode):
    """Counts the ops that PyTorch dispatches."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def per_call(op: Callable[[], object]) -> float:
    began = time.thread_time()
    for _ in range(COUNT):
        op()
    return (time.thread_time() - began) / COUNT * 1e6


def main() -> None:
    torch.set_num_threads(1)
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    w = torch.randn(8, 8, requires_grad=True)
    ops: dict[str, Callable[[], object]] = {
        "add": lambda: a + b,
        "mm": lambda: a @ b,
        "relu": lambda: a.relu(),
        "softmax": lambda: a.softmax(-1),
        "view": lambda: a.view(64),
        "add_ (in place)": lambda: a.add_(0.0),
        "mm, sum, backward": lambda: (a @ w).sum().backward(),
    }
    table = []
    with ThreadPoolExecutor(1) as outside:
        for name, op in ops.items():
            plain, inside = [], []
            with remint.budget("64MiB"):
                for _ in range(TURNS):
                    plain.append(outside.submit(per_call, op).result())
                    inside.append(per_call(op))
            with Counter() as counter:
                op()
            more = median(x - y for x, y in zip(inside, plain, strict=True)) / counter.count
            table.append([name, str(counter.count), f"{median(plain):.2f}", f"{median(inside):.2f}", f"{more:+.2f}"])
    publish("Overhead per op", markdown(["call", "ops", "plain, µs", "inside a budget, µs", "more per op, µs"], table))


if __name__ == "__main__":
    main()
