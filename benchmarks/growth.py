"""How the engine's own work grows with the length of a step.

python benchmarks/growth.py                    # 400 to 25,600 ops
FULL=1 python benchmarks/growth.py             # and 100,000
python benchmarks/growth.py --lengths 400,6400

A chain of (linear, GELU) layers on 512x64 trains at half of its peak, greedy and learned. Shares are those of the
step's CPU time. Searches and bookkeeping are timed by the wall clock, so of several steps the one counts in which
others at work disturbed least. Then: what windows cost that are found without a look at all blocks, over the cheapest.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import remint
from remint import Trace, _core, generators
from report import FULL, markdown, publish

LENGTHS = (400, 1_600, 6_400, 25_600, *((100_000,) if FULL else ()))
OPS_PER_LAYER = 6
STEPS = 6
FEW_STEPS = 4


class Chain:
    """The network, with plain gradient descent."""

    def __init__(self, num_ops: int) -> None:
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(num_ops // OPS_PER_LAYER)]
        self.net = nn.Sequential(*layers)
        self.input = torch.randn(512, 64)
        self.parameters = list(self.net.parameters())

    def step(self) -> float:
        """Return the CPU seconds that it took."""
        started = time.thread_time()
        for parameter in self.parameters:
            parameter.grad = None
        self.net(self.input).square().mean().backward()
        with torch.no_grad():
            for parameter in self.parameters:
                parameter -= 1e-3 * parameter.grad
        return time.thread_time() - started


@dataclass(frozen=True)
class Step:
    """What one step took."""

    seconds: float
    num_searches: int
    searching: float
    bookkeeping: float

    @property
    def share(self) -> float:
        return (self.searching + self.bookkeeping) / self.seconds


def steps_of(chain: Chain, budget: int, num_steps: int, *, learn: bool) -> tuple[list[Step], Any]:
    steps = []
    with remint.budget(budget, learn=learn) as run:
        before = (0, 0.0, 0.0)
        for _ in range(num_steps):
            seconds = chain.step()
            after = (run.num_searches, run.search_seconds, run.bookkeeping_seconds)
            steps.append(Step(seconds, *(a - b for a, b in zip(after, before, strict=True))))
            before = after
    return steps, run


def row_of(length: int) -> list[str]:
    chain = Chain(length)
    with remint.budget("64GiB", learn=False) as run:
        chain.step()
    peak, num_ops = run.peak_bytes, run.num_ops
    num_steps = STEPS if length < 10_000 else FEW_STEPS
    greedy, _ = steps_of(chain, peak // 2, num_steps, learn=False)
    learned, run = steps_of(chain, peak // 2, num_steps + 2, learn=True)
    # The first step is cold. The guide of the learned steps is made at the end of one step, and counts there.
    calm = min(greedy[1:], key=lambda step: step.share)
    followed = [step for step in learned if step.num_searches == 0]
    assert len(followed) == run.learning.learned.num_steps, (learned, run.learning)
    calm_learned = min(followed, key=lambda step: step.share)
    usual = statistics.median(step.seconds for step in greedy[1:])
    return [
        f"{num_ops:,}",
        f"{calm.seconds * 1e3:,.0f} ms",
        f"{calm.num_searches:,} x {calm.searching / calm.num_searches * 1e6:.1f} µs",
        f"{calm.searching / calm.seconds:.1%}",
        f"{calm.bookkeeping / calm.seconds:.1%}",
        f"{calm_learned.seconds * 1e3:,.0f} ms",
        f"{calm_learned.searching / calm_learned.seconds:.1%}",
        f"{calm_learned.bookkeeping / calm_learned.seconds:.1%}",
        f"{(max(step.seconds for step in learned[1:]) - usual) / usual:.1f} steps",
        f"{run.learning.known_bytes / num_ops:,.0f} B",
    ]


def windows_row(name: str, trace: Trace, percent: int) -> list[str]:
    figures = {}
    for windows in ("compared", "all"):
        run = _core.Simulation(
            budget=trace.peak_bytes * percent // 100, arena=True, ghosts=True, policy="coop", windows=windows
        )
        assert run.advance(trace, finish=True) == "ok"
        figures[windows] = run.statistics()
    compared = figures["compared"]
    slowdowns = [1 + f["rematerialized_ns"] / f["computed_ns"] for f in figures.values()]
    return [
        f"{name} at {percent}%",
        f"{compared['num_searches']:,}",
        f"{compared['num_compared_windows']:,}",
        f"{compared['num_cheapest_windows'] / max(compared['num_compared_windows'], 1):.0%}",
        f"{compared['window_cost_ratio']:.3f}",
        f"{compared['worst_window_cost_ratio']:.1f}",
        *(f"{slowdown:.4f}x" for slowdown in slowdowns),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)), help="ops per step, about")
    lengths = [int(length) for length in parser.parse_args().lengths.split(",")]
    torch.set_num_threads(1)
    rows = []
    for length in lengths:
        rows.append(row_of(length))
        print(*rows[-1], flush=True)
    headings = [
        "ops",
        "greedy step",
        "searches",
        "searching",
        "bookkeeping",
        "learned step",
        "searching",
        "bookkeeping",
        "learning, once",
        "known, per op",
    ]
    # Small tensors and short ops, so that only a few stretches are looked at.
    size = {"nbytes": 2**15, "seconds": 1e-5}
    traces = {
        "chain": generators.chain(4_000, **size),
        "residual": generators.residual(300, **size),
        "tree": generators.tree(9, **size),
        "rnn": generators.rnn(600, **size),
        "random": generators.random_dag(3_000, seed=2, **size),
    }
    windows = [windows_row(name, trace, percent) for name, trace in traces.items() for percent in (70, 50)]
    window_headings = [
        "trace",
        "searches",
        "compared",
        "cheapest",
        "mean ratio",
        "worst",
        "slowdown",
        "if all are seen",
    ]
    notes = (
        "A guide is made once, after the first steps under pressure: simulated with the policy that knows the future, "
        "then placed. `known` is the memory of the learned step, outside of the budget."
    )
    table = f"{markdown(headings, rows)}\n\n{markdown(window_headings, windows)}"
    publish("Growth with the length of a step", table, notes=notes, packages=["torch"])


if __name__ == "__main__":
    main()
