"""Another checkout against this one, in one run: overhead per op, speed of the engine, steps under tight budgets.

python benchmarks/other_checkout.py ../before            # a checkout of another commit, with its modules built
python benchmarks/other_checkout.py ../before --rounds 7

Both run the code of this file, in processes of their own that take turns. A figure is the median over the rounds, in
CPU time; the ratio is the median of the ratios of neighbouring turns, below 1 where this checkout is faster.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import report

HERE = Path(__file__).parents[1]
OPS = 20_000
UNTIL_ASLEEP = 4_000  # ops after which a budget that learns needs to see no more of them
TIGHT = (("gpt", 50), ("gpt", 30), ("unet", 60), ("unet", 50))


def probe() -> dict[str, float]:
    """Measure the remint that this process imports. Keys end with their unit."""
    import torch

    torch.set_num_threads(1)
    return {**_overhead_per_op(), **_engine_speed(), **_tight_steps()}


def _watching() -> dict[str, bool]:
    """Return the options of a budget that sees every op: those of commits before learned steps have no such option."""
    import remint

    return {"learn": False} if "learn" in inspect.signature(remint.budget).parameters else {}


def _overhead_per_op() -> dict[str, float]:
    import torch
    from torch import nn

    import remint

    a, b = torch.randn(8, 8), torch.randn(8, 8)
    w = torch.randn(8, 8, requires_grad=True)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(100)))
    calls: dict[str, tuple[int, Callable[[], object]]] = {
        "add": (1, lambda: a + b),
        "mm": (1, lambda: a @ b),
        "softmax": (1, lambda: a.softmax(-1)),
        "view": (1, lambda: a.view(64)),
        "add_": (1, lambda: a.add_(0.0)),
        "mm, sum, backward": (8, lambda: (a @ w).sum().backward()),
        "100 layers, no_grad": (300, torch.no_grad()(lambda: net(a))),
        "100 layers, backward": (1_200, lambda: net(a).sum().backward()),
    }
    figures = {}
    for name, (ops, call) in calls.items():
        count = max(OPS // ops, 20)
        default, watched = [], []
        for _ in range(3):
            plain = _seconds(call, count)
            with remint.budget("64MiB"):
                _seconds(call, max(UNTIL_ASLEEP // ops, 20))
                default.append(_seconds(call, count) - plain)
            with remint.budget("64MiB", **_watching()):
                call()
                watched.append(_seconds(call, count) - plain)
        figures[f"{name}: more per call, µs"] = statistics.median(default) / count * 1e6
        figures[f"{name}: more per call, µs, every op watched"] = statistics.median(watched) / count * 1e6
    return figures


def _seconds(call: Callable[[], object], count: int) -> float:
    began = time.thread_time()
    for _ in range(count):
        call()
    return time.thread_time() - began


def _engine_speed() -> dict[str, float]:
    import remint
    from remint import generators

    figures = {}
    chain = generators.chain(20_000)
    for policy, memory in (("dtr-eq", "ideal"), ("coop", "arena")):
        began = time.thread_time()
        remint.simulate(chain, budget="200%", policy=policy, memory=memory, timeline=False)
        figures[f"{policy}, no pressure: per op, µs"] = (time.thread_time() - began) / chain.num_ops * 1e6
    trace = generators.residual(100)
    for policy, memory in (
        ("coop", "arena"),
        ("dtr-eq", "arena"),
        ("dtr-eq", "ideal"),
        ("dtr", "ideal"),
        ("lru", "ideal"),
    ):
        began = time.thread_time()
        run = remint.simulate(trace, budget="50%", policy=policy, memory=memory, timeline=False)
        figures[f"{policy}, {memory}, 50%: per search, µs"] = (time.thread_time() - began) / run.num_searches * 1e6
    return figures


def _tight_steps() -> dict[str, float]:
    import remint
    import workloads

    figures = {}
    for name, percent in TIGHT:
        step = _training_step(*workloads.make(name))
        with remint.budget("8GiB", **_watching()) as run:
            step()
        plain = min(_seconds(step, 1) for _ in range(3))
        with remint.budget(run.peak_bytes * percent // 100, **_watching()):
            step()
            tight = min(_seconds(step, 1) for _ in range(4))
        figures[f"{name} at {percent}%: time over plain"] = tight / plain
    return figures


def _training_step(net: Any, inputs: tuple[Any, ...]) -> Callable[[], None]:
    def step() -> None:
        net.zero_grad(set_to_none=True)
        net(*inputs).backward()

    return step


def measure(checkout: Path) -> dict[str, float]:
    """Run the probe on the modules of a checkout."""
    paths = os.pathsep.join(map(str, (checkout / "src", HERE / "benchmarks")))
    code = "import json, other_checkout; print(json.dumps(other_checkout.probe()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure both checkouts in turns, and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the other checkout, with its modules in src/remint")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rounds = []
    for number in range(args.rounds):
        rounds.append((measure(args.other.resolve()), measure(HERE)))
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
    rows = []
    for name in rounds[0][1]:
        before, after = ([figures[name] for figures in side] for side in zip(*rounds, strict=True))
        ratio = statistics.median(y / x for x, y in zip(before, after, strict=True))
        rows.append([name, f"{statistics.median(before):.3f}", f"{statistics.median(after):.3f}", f"{ratio:.2f}"])
    commits = [
        subprocess.run(
            ["git", "-C", folder, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        ).stdout.strip()
        for folder in (args.other, HERE)
    ]
    headings = ["figure", f"other ({commits[0]})", f"this ({commits[1]})", "ratio"]
    report.publish("Another checkout against this one", report.markdown(headings, rows))


if __name__ == "__main__":
    main()
