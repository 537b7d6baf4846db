"""The runtime against plain PyTorch and `torch.utils.checkpoint`: step time, peak, share of search and bookkeeping.

python benchmarks/online.py gpt unet                   # at the peak of torch.utils.checkpoint, and at 90 ... 20%
python benchmarks/online.py --free gpt2 resnet         # with no pressure only
python benchmarks/online.py --smallest gpt unet        # the smallest budget at which each policy still trains

Times are CPU seconds of one thread. A step in a budget and a plain step take turns, each in a thread of its own: other
threads are not touched by a budget. What is given is the median of the ratios of two such steps.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
from torch import nn

import remint
import report
import workloads

PERCENT = (90, 80, 70, 60, 50, 40, 30, 20)
POLICIES = ("coop", "dtr-eq", "lru")
MIB = 2**20
# A policy that takes more than this many times the plain time is not said to train.
PATIENCE = 10.0
PIPES = multiprocessing.get_context("fork")


@dataclass
class Measured:
    ratio: float  # to the plain step
    share: float  # of the step that went into search and bookkeeping
    peak: int
    fragmentation: float
    num_rematerializations: int


class Workload:
    """A model, its plain step, and its step with every block in `torch.utils.checkpoint`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.plain, self.inputs = workloads.make(name)
        self.twin, _ = workloads.make(name)  # for plain steps beside those in a budget
        self.regions, _ = workloads.make(name, regions=True)
        self.plain_seconds = min(self.step(self.plain) for _ in range(3))

    def step(self, net: nn.Module) -> float:
        started = time.thread_time()
        net.zero_grad(set_to_none=True)
        net(*self.inputs).backward()
        return time.thread_time() - started

    def turns(self, net: nn.Module, rounds: int) -> tuple[float, float]:
        """Return the median ratio of `net`'s step to the plain one, and the time that the former took in all."""
        ratios, elapsed = [], 0.0
        with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as outside:
            for _ in range(rounds):
                plain = outside.submit(self.step, self.twin).result()
                began = time.perf_counter()
                ratios.append(self.step(net) / plain)
                elapsed += time.perf_counter() - began
        return statistics.median(ratios), elapsed

    def budgeted(self, budget: int | str, policy: str, rounds: int, *, regions: bool = False) -> Measured:
        """Measure in a process of its own: one that takes more than PATIENCE can be stopped only from outside."""
        theirs, ours = PIPES.Pipe(duplex=False)
        child = PIPES.Process(target=self._measure, args=(ours, budget, policy, rounds, regions))
        child.start()
        ours.close()
        try:
            # Others may keep the machine busy: what is counted is CPU time, what is waited for is not.
            if not theirs.poll(2 * PATIENCE * self.plain_seconds):
                raise TimeoutError
            found = theirs.recv() or theirs.recv()
        finally:
            child.kill()
            child.join()
        if isinstance(found, Exception):
            raise found
        if found.ratio > PATIENCE:
            raise TimeoutError
        return found

    def _measure(self, pipe: Connection, budget: int | str, policy: str, rounds: int, regions: bool) -> None:
        net = self.regions if regions else self.plain
        net.zero_grad(set_to_none=True)
        try:
            with remint.budget(budget, policy=policy) as run:
                self.step(net)  # allocates gradients and warms up
                pipe.send(None)
                before = run.search_seconds + run.bookkeeping_seconds
                ratio, elapsed = self.turns(net, rounds)
                # Both by the clock on the wall, which the runtime measures with.
                share = (run.search_seconds + run.bookkeeping_seconds - before) / elapsed
                found = Measured(ratio, share, run.peak_bytes, run.fragmentation, run.num_rematerializations)
            pipe.send(found)
        except remint.BudgetError as error:
            pipe.send(remint.BudgetError(str(error)))


def row(name: str, label: str, policy: str, found: Measured) -> list[str]:
    return [
        name, label, policy, f"{found.peak / MIB:.1f}", f"{found.ratio:.3f}", f"{found.share:.1%}",
        f"{found.fragmentation:.1%}", f"{found.num_rematerializations}",
    ]  # fmt: skip


HEADINGS = ["model", "budget", "policy", "peak MiB", "time/plain", "search+books", "fragmentation", "rematerialized"]


def curve(name: str, rounds: int, *, free_only: bool) -> list[list[str]]:
    workload = Workload(name)
    free = workload.budgeted("8GiB", "coop", rounds)
    rows = [row(name, "no pressure", "coop", free)]
    if free_only:
        return rows
    by_hand = workload.budgeted("8GiB", "coop", 1, regions=True).peak
    workload.step(workload.regions)
    ratio, _ = workload.turns(workload.regions, rounds)
    rows.append([name, "checkpoint per block", "-", f"{by_hand / MIB:.1f}", f"{ratio:.3f}", "", "", ""])
    peak = free.peak
    points = [("checkpoint's peak", by_hand), *((f"{percent}%", peak * percent // 100) for percent in PERCENT)]
    for policy in POLICIES:
        for label, budget in points:
            try:
                rows.append(row(name, label, policy, workload.budgeted(budget, policy, rounds)))
            except remint.BudgetError:
                rows.append([name, label, policy, "", "does not fit", "", "", ""])
            except TimeoutError:
                rows.append([name, label, policy, "", f"over {PATIENCE:.0f}", "", "", ""])
            print(*rows[-1], flush=True)
    return rows


def smallest(name: str) -> list[list[str]]:
    """Bisect for the smallest budget, in percent of the peak, at which a step takes no more than PATIENCE."""
    workload = Workload(name)
    peak = workload.budgeted("8GiB", "coop", 1).peak
    rows = []
    for policy in POLICIES:
        low, high = 0, 100
        while high - low > 1:
            percent = (low + high) // 2
            try:
                workload.budgeted(peak * percent // 100, policy, 1)
                high = percent
            except (remint.BudgetError, TimeoutError):
                low = percent
        rows.append([name, policy, f"{high}%", f"{peak * high / 100 / MIB:.1f}"])
        print(*rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+", help="gpt, gpt12, unet, resnet, gpt2")
    parser.add_argument("--free", action="store_true", help="with no pressure only")
    parser.add_argument("--smallest", action="store_true", help="the smallest budgets")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of steps per figure")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.smallest:
        rows = [row for name in arguments.workloads for row in smallest(name)]
        report.publish(
            f"The smallest budgets that train in at most {PATIENCE:.0f} times the plain time",
            report.markdown(["model", "policy", "of the peak", "MiB"], rows),
            name="online_smallest",
        )
    else:
        rows = [row for name in arguments.workloads for row in curve(name, arguments.rounds, free_only=arguments.free)]
        name = "_".join(["online", *(["free"] if arguments.free else []), *arguments.workloads])
        report.publish("The online runtime against plain PyTorch", report.markdown(HEADINGS, rows), name=name)


if __name__ == "__main__":
    main()
