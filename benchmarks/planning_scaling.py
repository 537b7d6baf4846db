"""How planning time grows with the graph: python benchmarks/planning_scaling.py [--full]

Residual networks at half their peak: when the first plan is there, when one within 1% of the last, and what
gap is certified in the time given. --full goes from 100 to 20,000 ops.
"""

from __future__ import annotations

import argparse
import datetime
import time

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

from remint import Graph, generators, plan, verify
from remint.planners import Progress
from report import RESULTS, markdown, publish

BLOCKS = (7, 36, 71, 178, 357, 714, 1428)
NOTES = """first: when the first plan was reported; good: when one within 1% of the last one was; all: when `plan`
returned, in seconds from the call, which begins with a graph whose peak is not known yet."""


def measure(graph: Graph, name: str, limit: float) -> dict[str, float]:
    began = time.monotonic()
    seen: list[Progress] = []
    made = plan(graph, "50%", name, limit, progress=seen.append)
    total = time.monotonic() - began
    verify(graph, made, "50%")
    costs = [(p.seconds, p.cost) for p in seen if p.cost is not None] or [(total, made.cost)]
    good = next((t for t, c in costs if c <= made.cost * 1.01), total)
    return {
        "first": costs[0][0],
        "first overhead": costs[0][1] / graph.cost - 1,
        "good": good,
        "all": total,
        "overhead": made.overhead,
        "bound": made.bound / graph.cost - 1,
        "gap": made.gap,
    }


def draw(rows: list[tuple[str, int, dict[str, float]]], limit: float) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    for name in ("search", "auto"):
        mine = [(ops, row) for planner, ops, row in rows if planner == name]
        ops = [n for n, _ in mine]
        left.plot(ops, [row["first"] for _, row in mine], marker="o", label=f"{name}: first plan")
        left.plot(ops, [row["good"] for _, row in mine], marker=".", linestyle="--", label=f"{name}: within 1% of last")
        right.plot(ops, [100 * row["overhead"] for _, row in mine], marker="o", label=f"{name}: overhead")
    mine = [(ops, row) for planner, ops, row in rows if planner == "auto"]
    right.plot([n for n, _ in mine], [100 * row["bound"] for _, row in mine], "k:", label="auto: proven bound")
    left.set(xscale="log", yscale="log", xlabel="ops", ylabel="seconds")
    right.set(xscale="log", xlabel="ops", ylabel=f"% over running once, after {limit:g} s", ylim=(0, None))
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.tight_layout()
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    figure.savefig(RESULTS / f"planning_scaling.{today}.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="up to 20,000 ops instead of 1,000")
    parser.add_argument("--time-limit", type=float, default=10)
    options = parser.parse_args()
    rows = []
    for blocks in BLOCKS if options.full else BLOCKS[:3]:
        for name in ("search", "auto"):
            graph = Graph.from_trace(generators.residual(blocks))  # a fresh one: graphs remember their peak
            rows.append((name, len(graph.ops), measure(graph, name, options.time_limit)))
            print(rows[-1], flush=True)
    shown = [
        [name, str(ops), *(f"{v:.2f} s" if k in ("first", "good", "all") else f"{v:.2%}" for k, v in row.items())]
        for name, ops, row in rows
    ]
    publish(
        "How planning time grows",
        markdown(["planner", "ops", *rows[0][2]], shown),
        notes=NOTES,
        packages=("highspy", "ortools"),
    )
    draw(rows, options.time_limit)


if __name__ == "__main__":
    main()
