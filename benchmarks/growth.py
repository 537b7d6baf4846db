"""How the engine's own work grows with the length of a step.

python benchmarks/growth.py                    # 400 to 25,600 ops
FULL=1 python benchmarks/growth.py             # and 100,000
python benchmarks/growth.py --lengths 400,6400

A chain of (linear, GELU) layers on 512x64 trains at half of its peak, greedy and learned. Shares are those of the
step's CPU time, sampled by Linux perf: searches, and all else that runs in the library. Then: what windows cost that
are found without a look at all blocks, over the cheapest.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

import torch
from torch import nn

import remint
from remint import Trace, _core, generators
from report import FULL, markdown, publish

LENGTHS = (400, 1_600, 6_400, 25_600, *((100_000,) if FULL else ()))
OPS_PER_LAYER = 8


class Chain:
    """The network, with its optimizer."""

    def __init__(self, num_ops: int) -> None:
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(num_ops // OPS_PER_LAYER)]
        self.net = nn.Sequential(*layers)
        self.input = torch.randn(512, 64)
        self.optimizer = torch.optim.SGD(self.net.parameters(), 1e-3)

    def step(self) -> float:
        """Return the CPU seconds that it took."""
        started = time.thread_time()
        self.optimizer.zero_grad()
        self.net(self.input).square().mean().backward()
        self.optimizer.step()
        return time.thread_time() - started


class Sampling:
    """Where the CPU time of this process goes. A clock would count the time of others who use the machine."""

    SEARCHING = re.compile(r"Coop|WindowSearch|CompactionSearch|Closures::cost|evict_for|allocate_guided|allocate_at")
    LINE = re.compile(r"\s*([\d.]+)%\s+(\S+)\s+\[.\]\s+(.*)")

    def __enter__(self) -> Sampling:
        self.file = Path(tempfile.mkdtemp()) / "samples"
        command = ["perf", "record", "--quiet", "-F", "1999", "-o", str(self.file), "-p", str(os.getpid())]
        self.perf = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.5)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.perf.send_signal(signal.SIGINT)
        self.perf.wait()

    def shares(self) -> tuple[float, float]:
        """Return the shares of searches and of all else in the library."""
        command = ["perf", "report", "--stdio", "--no-children", "--sort", "dso,symbol", "-i", str(self.file)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        searching = others = 0.0
        for share, module, symbol in (match.groups() for match in map(self.LINE.match, text.splitlines()) if match):
            if not module.startswith("_torch."):
                continue
            if self.SEARCHING.search(symbol):
                searching += float(share) / 100
            else:
                others += float(share) / 100
        return searching, others


def row_of(length: int) -> list[str]:
    chain = Chain(length)
    with remint.budget("64GiB", learn=False) as run:
        chain.step()
    peak, num_ops = run.peak_bytes, run.num_ops
    num_steps = max(2, min(40, 30_000 // length))
    with remint.budget(peak // 2, learn=False) as run:
        chain.step()
        searches = run.num_searches
        with Sampling() as greedy_samples:
            greedy = [chain.step() for _ in range(num_steps)]
        searches = (run.num_searches - searches) // num_steps
    with remint.budget(peak // 2) as run:
        first = [chain.step() for _ in range(5)]
        with Sampling() as learned_samples:
            learned = [chain.step() for _ in range(num_steps)]
    assert run.learning.learned.num_steps >= num_steps, run.learning
    usual = statistics.median(greedy)
    return [
        f"{num_ops:,}",
        f"{usual * 1e3:,.0f} ms",
        f"{searches:,}",
        *(f"{share:.1%}" for share in greedy_samples.shares()),
        f"{statistics.median(learned) * 1e3:,.0f} ms",
        *(f"{share:.1%}" for share in learned_samples.shares()),
        # The guide is made at the end of one of these steps, and placed anew once gradients have their places.
        f"{max(0.0, max(first[1:]) - usual) / usual:.1f} steps",
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
