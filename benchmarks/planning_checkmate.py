"""Checkmate's comparisons on graphs captured here: python benchmarks/planning_checkmate.py GRAPHS [--full]

1. Cost against budget, every planner (figure 5).
2. Cost over the best known at equal memory, for every baseline: the geometric mean over budgets (table 2).
3. The largest batch under 16 GB with at most one extra forward pass (figure 6), by `scaled`.
4. DTR against the best known is the column `dtr` of 2.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from planning_networks import BATCH, load, scaled
from remint import BudgetError, Graph, Plan, plan
from remint.graph.numbered import NumberedGraph
from report import markdown, publish

NETWORKS = ("vgg16", "vgg19", "mobilenet", "unet", "resnet50")
BASELINES = (
    "chen-sqrt",
    "chen-sqrt-ap",
    "chen-greedy",
    "chen-greedy-ap",
    "griewank",
    "griewank-ap",
    "chain",
    "dtr",
    "demand",
    "rounding",
    "rounding-repair",
    "search",
)
BATCH_PLANNERS = ("keep", "chen-sqrt", "chen-greedy", "dtr", "auto")
PARTS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
LARGEST_COST = 2.1  # in the picture: one more forward pass and half a step
GB16 = 16 * 10**9
NOTES = """Cost over the best plan known at the same budget (that of `auto`, or a baseline's where it is better),
geometric mean over 90, 80, 70, 60, 50 and 40% of the peak as far as `auto` has a plan; in brackets at how many of these
the baseline has one. `dtr` is the online engine's schedule on the same graph. Batches: bytes and costs of all that a
batch makes are scaled; the cost is at most that of a step and one more forward pass."""


def attempt(graph: Graph, budget: int, name: str, limit: float) -> Plan | None:
    try:
        return plan(graph, budget, name, limit)
    except BudgetError:
        return None


Costs = dict[float, dict[str, float]]
"""By budget, as a part of the peak, and planner: the cost of its plan."""


def costs_of(graph: Graph, parts: tuple[float, ...], limit: float) -> Costs:
    costs: Costs = {}
    for part in parts:
        budget = int(graph.peak_bytes * part)
        if budget < graph.min_budget_bytes:
            continue
        made = {name: attempt(graph, budget, name, limit) for name in ("auto", *BASELINES)}
        costs[part] = {name: p.cost for name, p in made.items() if p is not None}
    return costs


def over_best(costs: Costs) -> list[str]:
    comparable = [found for found in costs.values() if "auto" in found]
    count = len(comparable)
    ratios = {
        name: [found[name] / min(found.values()) for found in comparable if name in found]
        for name in ("auto", *BASELINES)
    }
    return [
        f"{math.exp(sum(map(math.log, r)) / len(r)):.3f}" + (f" ({len(r)}/{count})" if len(r) < count else "")
        if r
        else "–"
        for r in ratios.values()
    ]


def picture(costs: dict[str, tuple[Graph, Costs]]) -> Figure:
    figure = Figure(figsize=(4.2 * len(costs), 4.2), layout="constrained")
    axes = figure.subplots(1, len(costs), squeeze=False)
    colors = mpl.colormaps["tab20"]
    for place, (axis, (network, (graph, by_budget))) in enumerate(zip(axes[0], costs.items(), strict=True)):
        for number, name in enumerate(("auto", *BASELINES)):
            points = [(100 * part, found[name] / graph.cost) for part, found in by_budget.items() if name in found]
            style = {"color": "black", "linewidth": 2.5, "zorder": 3} if name == "auto" else {"color": colors(number)}
            axis.plot(*zip(*points, strict=True) if points else ((), ()), marker="o", markersize=3, label=name, **style)
        axis.set(title=network, xlabel="budget, % of the peak", ylim=(0.97, LARGEST_COST))
        if place == 0:
            axis.set_ylabel("cost over that of every op once")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=7, frameon=False)
    return figure


def largest_batch(graph: Graph, batch: int, name: str, limit: float) -> int:
    def fits(size: int) -> bool:
        larger = scaled(graph, size / batch)
        forward = sum(NumberedGraph.of(larger).cost[: NumberedGraph.of(larger).turn])
        made = attempt(larger, GB16, name, limit)
        return made is not None and made.cost <= larger.cost + forward

    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", type=Path)
    parser.add_argument("--full", action="store_true", help="all five networks and six budgets")
    parser.add_argument("--time-limit", type=float, default=3, help="seconds per plan")
    options = parser.parse_args()
    networks = NETWORKS if options.full else NETWORKS[:1]
    parts = PARTS if options.full else (0.8, 0.6)
    costs: dict[str, tuple[Graph, Costs]] = {}
    rows, batches = [], []
    for name in networks:
        graph = load(options.graphs, name)
        costs[name] = graph, costs_of(graph, parts, options.time_limit)
        rows.append([name, str(len(graph.ops)), *over_best(costs[name][1])])
        plain = Graph.load(options.graphs / f"{name}.plain.graph")
        sizes = [largest_batch(plain, BATCH[name], p, options.time_limit) for p in BATCH_PLANNERS]
        batches.append([name, *map(str, sizes), f"{sizes[-1] / sizes[0]:.2f}"])
        print(rows[-1], batches[-1], flush=True)
    table = markdown(["network", "ops", "auto", *BASELINES], rows)
    table += "\n\nThe largest batch under 16 GB with at most one extra forward pass:\n\n"
    table += markdown(["network", *BATCH_PLANNERS, "auto over keep"], batches)
    publish("Checkmate's comparisons", table, notes=NOTES, figure=picture(costs), packages=("highspy", "ortools"))


if __name__ == "__main__":
    main()
