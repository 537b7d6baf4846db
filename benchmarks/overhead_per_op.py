"""What an op costs more inside a budget that is never short: microseconds of CPU time, on tensors of 8 x 8."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

import remint
from report import FULL, markdown, publish

COUNT = 20_000 if FULL else 4_000


def per_op(op: Callable[[], object]) -> float:
    def once() -> float:
        began = time.process_time()
        for _ in range(COUNT):
            op()
        return (time.process_time() - began) / COUNT * 1e6

    return min(once() for _ in range(5))


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
    for name, op in ops.items():
        plain = per_op(op)
        with remint.budget("64MiB"):
            inside = per_op(op)
        table.append([name, f"{plain:.2f}", f"{inside:.2f}", f"{inside - plain:+.2f}"])
    publish("Overhead per op", markdown(["op", "plain, µs", "inside a budget, µs", "more, µs"], table))


if __name__ == "__main__":
    main()
