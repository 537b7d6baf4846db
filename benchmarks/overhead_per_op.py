"""What an op costs more inside a budget that is never short: microseconds of CPU time, on tensors of 8 x 8.

*Watched* is a budget that sees every op (`learn=False`); *asleep* is one that has learned that memory is plentiful. All
sides take turns, and the machine's speed changes from turn to turn: a figure is the median of the differences between
neighbouring turns, the one in brackets that of the fastest turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import remint
from report import FULL, markdown, publish

OPS = 5_000  # per turn, at least
UNTIL_ASLEEP = 4_000  # ops after which a budget sleeps
TURNS = 30 if FULL else 10


class Counter(TorchDispatchMode):
    """Counts the ops that PyTorch dispatches."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def per_call(op: Callable[[], object], count: int) -> float:
    began = time.thread_time()
    for _ in range(count):
        op()
    return (time.thread_time() - began) / count * 1e6


def main() -> None:
    torch.set_num_threads(1)
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    w = torch.randn(8, 8, requires_grad=True)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(100)))
    ops: dict[str, Callable[[], object]] = {
        "add": lambda: a + b,
        "mm": lambda: a @ b,
        "relu": lambda: a.relu(),
        "softmax": lambda: a.softmax(-1),
        "view": lambda: a.view(64),
        "add_ (in place)": lambda: a.add_(0.0),
        "mm, sum, backward": lambda: (a @ w).sum().backward(),
        "100 x (linear, tanh), no_grad": torch.no_grad()(lambda: net(a)),
        "the same, forward and backward": lambda: net(a).sum().backward(),
    }
    table = []
    for name, op in ops.items():
        with Counter() as counter:
            op()
        count = -(-OPS // counter.count)
        plain, watched, asleep = [], [], []
        for _ in range(TURNS):
            plain.append(per_call(op, count))
            with remint.budget("64MiB", learn=False):
                op()
                watched.append(per_call(op, count))
            with remint.budget("64MiB"):
                per_call(op, -(-UNTIL_ASLEEP // counter.count))
                asleep.append(per_call(op, count))

        def more(inside: list[float], plain: list[float] = plain, ops: int = counter.count) -> str:
            typical = median(x - y for x, y in zip(inside, plain, strict=True)) / ops
            return f"{typical:+.2f} ({(min(inside) - min(plain)) / ops:+.2f})"

        table.append([name, str(counter.count), f"{median(plain):.2f}", more(watched), more(asleep)])
        print(*table[-1], flush=True)
    columns = ["call", "ops", "plain, µs", "watched: more per op, µs", "asleep: more per op, µs"]
    publish("Overhead per op", markdown(columns, table))


if __name__ == "__main__":
    main()
