"""Checkmate's comparisons on graphs captured here: python benchmarks/planning_checkmate.py DIR

1. Cost over the best known at equal memory, for every baseline: the geometric mean over budgets (table 2).
2. The largest batch under 16 GB with at most one extra forward pass (figure 6): bytes and costs of what the
   batch makes are scaled, weights and their gradients are not.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path

from remint import BudgetError, Graph, Plan, plan
from remint.problem import Problem

NETWORKS = {
    "vgg16": 8,
    "vgg19": 8,
    "mobilenet": 16,
    "unet": 4,
    "resnet50": 8,
}  # and the batch they were captured with
BASELINES = (
    "chen-sqrt",
    "chen-sqrt-ap",
    "chen-greedy",
    "chen-greedy-ap",
    "griewank",
    "griewank-ap",
    "chain",
    "dtr",
    "rounding",
    "rounding-repair",
)
PARTS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
GB16 = 16 * 10**9


def attempt(graph: Graph, budget: int, name: str, limit: float) -> Plan | None:
    try:
        return plan(graph, budget, name, limit)
    except BudgetError:
        return None


def over_optimum(graph: Graph, limit: float) -> dict[str, str]:
    ratios: dict[str, list[float]] = {name: [] for name in BASELINES}
    count = 0
    for part in PARTS:
        budget = int(graph.peak_bytes * part)
        best = attempt(graph, budget, "auto", limit)
        if best is None:
            continue
        count += 1
        for name in BASELINES:
            if name.startswith("rounding") and len(graph.ops) > 220:
                continue
            made = attempt(graph, budget, name, limit)
            if made is not None:
                ratios[name].append(made.cost / best.cost)
    return {
        name: f"{math.exp(sum(map(math.log, r)) / len(r)):.3f} ({len(r)}/{count})" if r else "–"
        for name, r in ratios.items()
    }


def scaled(graph: Graph, factor: float) -> Graph:
    """The graph with a larger batch: all grows but weights, their gradients and what else is an output."""
    results = set(graph.outputs)
    constants = {v: int(b * factor) if v.startswith("input") else b for v, b in graph.constants.items()}
    ops = (
        replace(
            op,
            cost=op.cost * factor,
            outputs={v: b if v in results else int(b * factor) for v, b in op.outputs.items()},
        )
        for op in graph.ops
    )
    return Graph(tuple(ops), constants, graph.outputs)


def largest_batch(graph: Graph, batch: int, name: str, limit: float) -> int:
    def fits(size: int) -> bool:
        larger = scaled(graph, size / batch)
        problem = Problem(larger)
        forward = sum(problem.cost[: problem.turn])
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
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=float, default=10)
    options = parser.parse_args()
    print("| network | ops | " + " | ".join(BASELINES) + " | batch: keep | chen-sqrt | auto |")
    print("|" + "---|" * (5 + len(BASELINES)))
    for name, batch in NETWORKS.items():
        graph = Graph.load(options.folder / f"{name}.plain.graph")
        row = list(over_optimum(graph, options.limit).values())
        row += [str(largest_batch(graph, batch, p, 3)) for p in ("keep", "chen-sqrt", "auto")]
        print(f"| {name} | {len(graph.ops)} | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
