"""Learned and planned steps against the policy alone, on real training steps with SGD.

python benchmarks/learned.py                     # one budget for each network: about five minutes
FULL=1 python benchmarks/learned.py              # all budgets, and plans with more time: about 20 minutes
python benchmarks/learned.py unet:50,40 gpt:25   # others, in percent of the peak of a plain step

CPU seconds of one thread: the median of late steps in a budget over that of plain steps, which take turns with them
outside of it. The losses of all steps are compared bit for bit. Planned steps are waited for. What was predicted is
compared with what came of it: for the last step the peak to the byte and the number of rematerializations, and for the
median step its CPU seconds, in kernels and in all. (The slowdown is predicted over the kernels of the same step, not
over a plain step: outside of a budget kernels may be slower, and bookkeeping is not in it.)
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import nn

import remint
import report
import workloads
from remint.results.learning import StepOutcome
from remint.runtime.live_run import LiveRun

DEFAULT = ("unet:50", "gpt:25", "lstm:50", "mamba:45", "tree:30")
ALL = ("unet:50,40", "gpt:25,21", "lstm:50,35", "mamba:45", "tree:30")
WARM_UP = 4
# Where nothing is learned, steps that take longer than this many times the plain step are not waited for.
PATIENCE = 30.0
# Seconds to wait for plans. Where a plan is no better than what is known without one, none comes.
PLANNING_SECONDS = 150.0 if report.FULL else 25.0


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


@dataclass(frozen=True)
class Measured:
    """Late steps in a budget."""

    ratio: str
    """The time of a step over that of a plain one."""
    predicted: str = ""
    """Of the last step: the slowdown that was predicted, kernels only."""
    exact: str = ""
    """Of the last step: whether the peak and the rematerializations were as predicted."""
    kernels: str = ""
    """Seconds in kernels, against those that were predicted."""
    seconds: str = ""
    """CPU seconds of the whole step, against those that were predicted."""


def measure(name: str, budget: int, *, learn: bool, plan: bool, rounds: int) -> Measured:
    """Train in a budget, and next to it without one."""
    net, inputs = workloads.make(name)
    inside, outside = Training(copy.deepcopy(net), inputs), Training(net, inputs)
    ratios: list[float] = []
    # Other threads are not touched by a budget.
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as other:

        def ratio_of_step() -> float:
            plain = other.submit(outside.step).result()
            return inside.step() / plain

        try:
            with remint.budget(budget, learn=learn, plan=plan) as run:
                for _ in range(WARM_UP):
                    if ratio_of_step() > PATIENCE and not learn:
                        return Measured(f"over {PATIENCE:.0f}")
                if plan:
                    wait_for_plan(run, ratio_of_step)
                outcomes = []
                for _ in range(rounds):
                    ratios.append(ratio_of_step())
                    learning = run.learning
                    outcomes.append((learning.predicted, learning.measured))
        except remint.BudgetError:
            return Measured("does not fit")
    if inside.losses != outside.losses:
        raise AssertionError(f"{name} at {budget} bytes: the losses differ")
    ratio = f"{statistics.median(ratios):.3f}"
    predicted, measured = learning.predicted, learning.measured
    if predicted is None or measured is None:
        return Measured(ratio)
    peak, times = predicted.peak_bytes, predicted.num_rematerializations
    exact = (peak, times) == (measured.peak_bytes, measured.num_rematerializations)
    difference = f"{measured.peak_bytes - peak:+,} B, {measured.num_rematerializations - times:+,} runs"
    found = [(p, m) for p, m in outcomes if p is not None and m is not None and p.cpu_seconds > 0]
    in_kernels = [kernel_seconds(m) / kernel_seconds(p) - 1 for p, m in found]
    in_all = [m.cpu_seconds / p.cpu_seconds - 1 for p, m in found]
    off = [f"{statistics.median(each):+.1%}" if each else "" for each in (in_kernels, in_all)]
    return Measured(ratio, f"{predicted.slowdown:.3f}", "yes" if exact else difference, *off)


def kernel_seconds(outcome: StepOutcome) -> float:
    """Return the seconds of a step in kernels."""
    return outcome.computed_seconds + outcome.rematerialized_seconds


def wait_for_plan(run: LiveRun, step: Callable[[], float]) -> None:
    """Run steps until no better plan is searched for."""
    started = time.monotonic()
    idle = 0
    while idle < 3 and time.monotonic() - started < PLANNING_SECONDS:
        step()
        idle = 0 if run.learning.is_planning else idle + 1


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", nargs="*", default=ALL if report.FULL else DEFAULT, metavar="model:percent,...")
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
            greedy = measure(name, budget, learn=False, plan=False, rounds=args.rounds)
            learned = measure(name, budget, learn=True, plan=False, rounds=args.rounds)
            planned = measure(name, budget, learn=True, plan=True, rounds=args.rounds)
            row = [name, f"{percent}%", f"{peak / 2**20:.1f}", greedy.ratio, learned.ratio, learned.predicted]
            rows.append([*row, planned.ratio, planned.predicted, planned.exact, planned.kernels, planned.seconds])
            print(*rows[-1], flush=True)
    headings = [
        "model",
        "budget",
        "peak MiB",
        "greedy",
        "learned",
        "predicted",
        "planned",
        "predicted",
        "peak and runs as predicted",
        "kernels",
        "step",
    ]
    title = "Learned and planned steps: time over a plain step"
    report.publish(title, report.markdown(headings, rows), packages=["torch"])


if __name__ == "__main__":
    main()
