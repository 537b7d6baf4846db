"""Recompute, offload, or whichever is quicker: the slowdown of a step with a tier below its memory, by simulation.

`offload` is a tier so quick that everything that is in use goes there, at the price that its transfers have at the real
bandwidth (what the program released is recomputed all the same). `both` chooses. A bandwidth of 1 moves the peak of the
step, one way, in the time of the step. The program waits for every transfer.
"""

from __future__ import annotations

import math

from remint import Offload, Run, Trace, simulate
from report import FULL, markdown, publish
from traces import generated_traces

PLENTY = 1 << 50
BANDWIDTHS = (0.25, 1, 4, 16)


def run(trace: Trace, budget: str, bandwidth: float | None) -> Run:
    offload = None if bandwidth is None else Offload(bytes=PLENTY, bandwidth=bandwidth, latency=0)
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
                moved = run(trace, budget, 1e30)
                seconds = (moved.offloaded_bytes + moved.fetched_bytes) / bandwidth + moved.rematerialized_seconds
                offload = 1 + seconds / moved.computed_seconds if moved.status == "ok" else math.inf
                both = slowdown(run(trace, budget, bandwidth))
                row.append(f"{offload:.3f} → {both:.3f}")
                cases += 1
                better += both < min(recompute, offload) - 0.0005
                if both > min(recompute, offload) + 0.0005:
                    worse.append(both - min(recompute, offload))
            rows.append(row)
    publish(
        "Recompute, offload, or both",
        markdown(["trace", "budget", "recompute", *(f"bandwidth {each}" for each in BANDWIDTHS)], rows),
        notes="Slowdowns with `coop`; after the bandwidths, offload alone → both. "
        f"Of {cases} cases both were quicker than either alone in {better}, and slower than the better one in "
        f"{len(worse)}, by {max(worse, default=0.0):.3f} at most and {sum(worse) / max(len(worse), 1):.3f} in the "
        "mean.",
    )


if __name__ == "__main__":
    main()
