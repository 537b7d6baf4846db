"""Programs whose steps are never the same twice: learning against the policy alone.

python benchmarks/departures.py                      # about two minutes
python benchmarks/departures.py trees lengths --rounds 9

What was learned does not come again, so a learned budget has the work of learning and of departing, and nothing to
gain. Both kinds of budget run the same steps in turn, each round from the start; the losses of all steps are compared
bit for bit. CPU seconds of one thread, all steps of a budget, so that learning itself counts: the median of the ratios
of neighbouring turns.
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import remint
import report
import workloads
from remint.runtime.live_run import LiveRun

PERCENT = 60
STEPS = 24
Step = Callable[[nn.Module, random.Random], torch.Tensor]


def train(net: nn.Module, loss: torch.Tensor) -> torch.Tensor:
    """Go backward from a loss."""
    loss.backward()
    return loss


def cells_of_length(net: nn.Module, length: int) -> torch.Tensor:
    """Train LSTM cells on a sequence."""
    return train(net, net(torch.ones(length, 64, 128)))


def other_tree(net: nn.Module, draw: random.Random) -> torch.Tensor:
    """Train a TreeLSTM on a tree that was never seen."""
    leaves = draw.randint(16, 32)
    net.joins = [sorted(draw.sample(range(roots), 2)) for roots in range(leaves, 1, -1)]
    return train(net, net(torch.ones(leaves, 64, 64)))


def other_batch(net: nn.Module, draw: random.Random) -> torch.Tensor:
    """Train a chain of layers on a batch of another size."""
    return train(net, net(torch.ones(draw.randint(256, 512), 64)).square().mean())


def other_phase(net: nn.Module, draw: random.Random) -> torch.Tensor:
    """Accumulate gradients a few times, or evaluate."""
    loss = torch.zeros(())
    for _ in range(draw.randint(0, 2)):
        with torch.no_grad():
            loss += net(torch.ones(256, 64)).square().mean()
    for _ in range(draw.randint(1, 3)):
        loss = train(net, net(torch.ones(512, 64)).square().mean())
    return loss


def chain() -> nn.Module:
    """Return a deep network of small layers."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(60)))


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Step]] = {
    "lengths": (lambda: workloads.LSTMCells(128), lambda net, draw: cells_of_length(net, draw.randint(16, 48))),
    "three lengths": (
        lambda: workloads.LSTMCells(128),
        lambda net, draw: cells_of_length(net, draw.choice((16, 32, 48))),
    ),
    "trees": (lambda: workloads.TreeLSTM(64, 32), other_tree),
    "batches": (chain, other_batch),
    "phases": (chain, other_phase),
}


def turn(name: str, net: nn.Module, budget: int, *, learn: bool) -> tuple[float, list[float], LiveRun]:
    """Train in a budget of its own; return the CPU seconds, the losses, and the run."""
    net = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    draw = random.Random(1)
    losses = []
    with remint.budget(budget, learn=learn, plan=False) as run:
        started = time.thread_time()
        for _ in range(STEPS):
            optimizer.zero_grad()
            losses.append(PROGRAMS[name][1](net, draw).item())
            optimizer.step()
        seconds = time.thread_time() - started
    return seconds, losses, run


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="program", help=", ".join(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in args.programs or PROGRAMS:
        torch.manual_seed(0)
        net = PROGRAMS[name][0]()
        peak = turn(name, net, 8 << 30, learn=False)[2].peak_bytes
        budget = peak * PERCENT // 100
        ratios = []
        for number in range(args.rounds):
            turns = {
                learn: turn(name, net, budget, learn=learn) for learn in ((False, True), (True, False))[number % 2]
            }
            if turns[True][1] != turns[False][1]:
                raise AssertionError(f"{name}: the losses differ")
            ratios.append(turns[True][0] / turns[False][0])
        greedy, learning = turns[False][0], turns[True][2].learning
        rows.append(
            [
                name,
                f"{peak / 2**20:.1f}",
                f"{greedy / STEPS * 1e3:.1f}",
                f"{turns[False][2].num_rematerializations / STEPS:.0f}",
                f"{learning.learned.num_steps} of {STEPS}",
                str(learning.num_departures),
                f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
            ]
        )
        print(*rows[-1], flush=True)
    headings = [
        "program",
        "peak MiB",
        "ms per step",
        "rematerializations",
        "followed",
        "departures",
        "learning / greedy",
    ]
    notes = f"Budgets are {PERCENT}% of the peak. `followed` counts steps that began with a guide."
    report.publish("Steps that never repeat", report.markdown(headings, rows), notes=notes, packages=["torch"])


if __name__ == "__main__":
    main()
