"""Learned steps against the policy alone, on real training steps with SGD.

python benchmarks/learned.py                     # the budgets below
python benchmarks/learned.py unet:50,40 gpt:25   # others, in percent of the peak of a plain step

CPU seconds of one thread: the median of late steps in a budget over that of plain steps, which take turns with them
outside of it. The losses of all steps are compared bit for bit.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

import remint
import report
import workloads

DEFAULT = ("unet:50,40", "gpt:25,21", "lstm:50,35", "mamba:45", "tree:30")
WARM_UP = 4
# Greedy steps that take longer than this many times the plain step are not waited for.
PATIENCE = 30.0


class Training:
    """A model with its optimizer."""

    def __init__(self, net: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self.net, self.inputs = net, inputs
        self.optimizer = torch.optim.SGD(net.parameters(), 1e-3)
        self.losses: list[float] = []

    def step(self) -> float:
        started = time.thread_time()
        self.optimizer.zero_grad()
        loss = self.net(*self.inputs)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        return time.thread_time() - started


def measure(name: str, budget: int, *, learn: bool, rounds: int) -> tuple[str, str]:
    """Return the ratio to a plain step, and what became of the steps."""
    net, inputs = workloads.make(name)
    inside, outside = Training(copy.deepcopy(net), inputs), Training(net, inputs)
    ratios = []
    # Other threads are not touched by a budget.
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as other:
        try:
            with remint.budget(budget, learn=learn) as run:
                for number in range(WARM_UP + rounds):
                    plain = other.submit(outside.step).result()
                    ratio = inside.step() / plain
                    if number >= WARM_UP:
                        ratios.append(ratio)
                    if ratio > PATIENCE:
                        return f"over {PATIENCE:.0f}", ""
        except remint.BudgetError:
            return "does not fit", ""
    if inside.losses != outside.losses:
        raise AssertionError(f"{name} at {budget} bytes: the losses differ")
    learning = run.learning
    predicted = f"{learning.learned.slowdown:.3f}" if learning.learned.num_steps else ""
    return f"{statistics.median(ratios):.3f}", predicted


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", nargs="*", default=DEFAULT, metavar="model:percent,...")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for point in args.points:
        name, percents = point.split(":")
        net, inputs = workloads.make(name)
        training = Training(net, inputs)
        with remint.budget("8GiB", learn=False) as run:
            training.step()
            training.step()
        peak = run.peak_bytes
        for percent in map(int, percents.split(",")):
            budget = peak * percent // 100
            greedy, _ = measure(name, budget, learn=False, rounds=args.rounds)
            learned, predicted = measure(name, budget, learn=True, rounds=args.rounds)
            rows.append([name, f"{percent}%", f"{peak / 2**20:.1f}", greedy, learned, predicted])
            print(*rows[-1], flush=True)
    headings = ["model", "budget", "peak MiB", "greedy", "learned", "kernels of learned steps"]
    report.publish("Learned steps: time over a plain step", report.markdown(headings, rows), packages=["torch"])


if __name__ == "__main__":
    main()
