"""Recompute, offload, or both: the slowdown of a step with a tier below its memory, by simulation.

Four ways: no tier; a tier where everything goes that the program still has; the quicker way, value by value; and what
a program does whose steps are learned: it simulates its step with each use of the tier, and takes the best. A bandwidth
of 1 moves the peak of the step, one way, in the time of the step. The program waits for every transfer.
"""

from __future__ import annotations

import math
from typing import get_args

from remint import Offload, Run, Trace, simulate
from remint.offload import TierUse
from report import FULL, markdown, publish
from traces import generated_traces

PLENTY = 1 << 50
BANDWIDTHS = (0.25, 1, 4, 16)


def run(trace: Trace, budget: str, bandwidth: float | None, use: TierUse = "either") -> Run:
    offload = None if bandwidth is None else Offload(bytes=PLENTY, bandwidth=bandwidth, latency=0, use=use)
    return simulate(
        trace, budget=budget, memory="arena", policy="coop", max_slowdown=100, offload=offload, timeline=False
    )


def slowdown(found: Run) -> float:
    return found.slowdown if found.status == "ok" else math.inf


def main() -> None:
    budgets = ("70%", "50%", "35%", "25%") if FULL else ("50%", "25%")
    rows, worse, better, cases = [], [], 0, 0
    for name, trace in generated_traces().items():
        for budget in budgets:
            recompute = slowdown(run(trace, budget, None))
            row = [name, budget, f"{recompute:.3f}"]
            for relative in BANDWIDTHS:
                bandwidth = relative * trace.peak_bytes / trace.seconds
                found = {use: slowdown(run(trace, budget, bandwidth, use)) for use in get_args(TierUse)}
                offload, both, best = found["offload"], found["either"], min(found.values())
                row.append(f"{offload:.3f}, {both:.3f} → {best:.3f}")
                cases += 1
                better += best < min(recompute, offload) - 0.0005
                if best > min(recompute, offload) + 0.0005:
                    worse.append(best - min(recompute, offload))
            rows.append(row)
    publish(
        "Recompute, offload, or both",
        markdown(["trace", "budget", "recompute", *(f"bandwidth {each}" for each in BANDWIDTHS)], rows),
        notes="Slowdowns with `coop`; after the bandwidths, offload alone, value by value → a learned step. "
        f"Of {cases} cases a learned step was quicker than both ways alone in {better}, and slower than the better one "
        f"in {len(worse)}, by {max(worse, default=0.0):.3f} at most.",
    )


if __name__ == "__main__":
    main()
