"""Coop's figures: overhead, fragmentation, search latency and the smallest budget, beside DTR on the same arena.

On steps recorded from the networks of its comparison, at CPU size.
"""

from __future__ import annotations

from matplotlib.figure import Figure

import remint
from coop_networks import STEPS
from recorded import record_steps
from report import FULL, markdown, publish

POLICIES = ("coop", "dtr-eq", "dte", "lru")
COLORS = dict(zip(POLICIES, ("#d5322d", "#4a86e8", "#2e9d5b", "#7b8794"), strict=True))


def search_microseconds(run: remint.Run) -> float:
    return 1e6 * run.search_seconds / max(1, run.num_searches)


def main() -> None:
    traces = record_steps(STEPS if FULL else dict(list(STEPS.items())[:3]))
    budgets = [f"{percent}%" for percent in (range(90, 19, -5) if FULL else range(80, 39, -20))]
    figure = Figure(figsize=(3.4 * len(traces), 9), layout="constrained")
    axes = figure.subplots(3, len(traces), squeeze=False, sharex=True)
    table = []
    for column, (name, trace) in enumerate(traces.items()):
        for policy in POLICIES:
            moving = policy == "coop"  # the others as their papers have them
            runs = [
                remint.simulate(trace, budget=budget, policy=policy, memory="arena", moving=moving, timeline=False)
                for budget in budgets
            ]
            fits = [(int(b[:-1]), run) for b, run in zip(budgets, runs, strict=True) if run.status == "ok"]
            x = [percent for percent, _ in fits]
            panels = (
                [run.slowdown for _, run in fits],
                [100 * run.fragmentation for _, run in fits],
                [search_microseconds(run) for _, run in fits],
            )
            for row, values in enumerate(panels):
                axes[row][column].plot(x, values, "o-", ms=3, color=COLORS[policy], label=policy)
            steps = 100 if FULL else 20
            smallest = remint.smallest_budget(trace, policy=policy, memory="arena", moving=moving, steps=steps)
            cells = [
                f"{run.slowdown:.2f}x / {run.fragmentation:.1%} / {search_microseconds(run):.1f} µs"
                if run.status == "ok"
                else run.status
                for run in runs
            ]
            table.append([name, policy, *cells, "none" if smallest is None else f"{smallest / trace.peak_bytes:.0%}"])
        axes[0][column].set_title(name)
        axes[2][column].set_xlabel("budget, % of the peak")
    for row, label in enumerate(("slowdown", "fragmentation, %", "µs per search")):
        axes[row][0].set_ylabel(label)
    axes[0][0].legend()
    headings = ["trace", "policy", *(f"slowdown / fragmentation / search at {b}" for b in budgets), "smallest budget"]
    publish("Coop's figures, on one arena", markdown(headings, table), figure=figure)


if __name__ == "__main__":
    main()
