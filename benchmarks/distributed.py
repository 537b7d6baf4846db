"""DDP on two ranks at the same peak: a budget of remint against `torch.utils.checkpoint`, and against plain steps.

python benchmarks/distributed.py            # at 60% of the peak of a plain step
python benchmarks/distributed.py 75 60 45

Checkpointed are as few blocks as bring the peak of a step under so many percent. What that takes is the budget of
remint. The three ways take turns, step by step, in one run. A time is that of the slower rank, the median over late
steps, as a ratio to the plain steps. CPU time leaves out waiting; wall time has it. The losses of all ways are compared
bit for bit. Gradients and buckets are outside of the peaks: they are the same in all ways.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import remint
import report
from remint.capture.profiled_peak import peak_bytes

RANKS, WIDTH, HEADS, DEPTH, BATCH, LENGTH = 2, 128, 4, 10, 8, 128
WARM_UP = 6
LIMIT = 900.0


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the result of one block."""
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT * (WIDTH // HEADS) ** -0.5).softmax(-1)
        x = x + self.out((scores @ v).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class Stack(nn.Module):
    """Blocks, of which the first `checkpointed` recompute their activations."""

    def __init__(self, checkpointed: int = 0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the result of all blocks."""
        for number, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if number < self.checkpointed else block(x)
        return x


class Training:
    """A model under DDP, with its optimizer."""

    def __init__(self, net: Stack, rank: int, checkpointed: int = 0) -> None:
        net = copy.deepcopy(net)
        net.checkpointed = checkpointed
        self.model = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(net.parameters(), 1e-3)
        self.x = torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(rank))
        self.losses: list[float] = []

    def step(self) -> tuple[float, float]:
        """Train a step; return its CPU and wall seconds on this rank."""
        dist.barrier()
        began = time.thread_time(), time.perf_counter()
        self.optimizer.zero_grad(set_to_none=False)
        loss = self.model(self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        return time.thread_time() - began[0], time.perf_counter() - began[1]

    def peak(self) -> int:
        """Return the peak of a step on the rank that takes most."""
        self.step()
        self.step()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            self.step()
        return _largest(peak_bytes(profile))


def _largest(number: float) -> int:
    each = torch.tensor(number, dtype=torch.float64)
    dist.all_reduce(each, op=dist.ReduceOp.MAX)
    return int(each)


@dataclass(frozen=True)
class Row:
    """Times of late steps at one budget, as ratios to plain steps."""

    percent: int
    peak: int
    budget: int
    checkpointed: int
    checkpoint: tuple[float, float]
    remint: tuple[float, float]
    recomputed: int


def measure(rank: int, net: Stack, percent: int, rounds: int) -> Row:
    """Train in all three ways."""
    plain_peak = Training(net, rank).peak()
    for checkpointed in range(1, DEPTH + 1):
        budget = Training(net, rank, checkpointed).peak()
        if budget <= plain_peak * percent // 100:
            break
    else:
        raise SystemExit(f"checkpointing all blocks takes more than {percent}% of the peak")
    ways = [Training(net, rank), Training(net, rank, checkpointed), Training(net, rank)]
    for way in ways:
        # Gradients are there, and DDP has its final buckets.
        way.step()
        way.step()
    seconds: list[list[tuple[float, float]]] = [[], [], []]
    # Other threads are not touched by a budget.
    other = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))
    with other, remint.budget(budget) as run:
        for _ in range(WARM_UP + rounds):
            for k in range(2):
                seconds[k].append(other.submit(ways[k].step).result())
            before = run.num_rematerializations
            seconds[2].append(ways[2].step())
            recomputed = run.num_rematerializations - before
    if not ways[0].losses == ways[1].losses == ways[2].losses:
        raise AssertionError("the losses differ")
    medians = [[statistics.median(each[k] for each in way[WARM_UP:]) for k in range(2)] for way in seconds]
    # The slower rank decides. Nanoseconds survive the conversion.
    slower = [[_largest(1e9 * value) for value in way] for way in medians]
    ratios = [(way[0] / slower[0][0], way[1] / slower[0][1]) for way in slower]
    return Row(percent, plain_peak, budget, checkpointed, ratios[1], ratios[2], recomputed)


def work(rank: int, store: str, percents: list[int], rounds: int, results: Connection) -> None:
    """Be one rank."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    torch.manual_seed(0)
    net = Stack()
    rows = [measure(rank, net, percent, rounds) for percent in percents]
    if rank == 0:
        results.send(rows)
    dist.destroy_process_group()


def main() -> None:
    """Measure on two ranks and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("percents", nargs="*", type=int, default=[60])
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        given = (str(Path(folder) / "store"), args.percents, args.rounds, there)
        ranks = [context.Process(target=work, args=(rank, *given), daemon=True) for rank in range(RANKS)]
        for process in ranks:
            process.start()
        end = time.monotonic() + LIMIT
        while not here.poll(0.2):
            if time.monotonic() > end or any(process.exitcode not in (None, 0) for process in ranks):
                raise SystemExit("a rank failed, or takes too long")
        rows: list[Row] = here.recv()
        for process in ranks:
            process.join(30)
    headings = ["peak", "MiB", "checkpointed", "checkpoint CPU", "wall", "remint CPU", "wall", "ops again per step"]
    cells = [
        [f"{100 * row.budget / row.peak:.0f}%", f"{row.budget / 2**20:.1f}", f"{row.checkpointed} of {DEPTH} blocks"]
        + [f"{ratio:.2f}x" for ratio in (*row.checkpoint, *row.remint)]
        + [str(row.recomputed)]
        for row in rows
    ]
    report.publish(
        "DDP on two ranks: a budget against checkpointing at the same peak",
        report.markdown(headings, cells),
        notes="Times are ratios to plain DDP: medians of late steps, which take turns, on the slower rank. CPU time "
        "leaves out waiting. The losses of all ways are the same bits.",
    )


if __name__ == "__main__":
    main()
