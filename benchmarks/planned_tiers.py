"""Planned tiers: what plans that may offload cost beside those that only recompute, at three bandwidths.

A bandwidth of 1 moves the peak of the step, one way, in the time of the step. Transfers run beside compute. Every plan
is verified. The seconds are CPU time: FULL=1 gives each plan ten times as much.
"""

from __future__ import annotations

import math
from itertools import pairwise

from remint import BudgetError, Graph, Plan, Tier, generators, plan, verify
from report import FULL, markdown, publish

BANDWIDTHS = (0.5, 2, 8)
BUDGETS = ("50%", "35%", "25%")
SECONDS = 20.0 if FULL else 2.0
PLENTY = 1 << 50


def networks() -> dict[str, Graph]:
    """Return one training step of each of five networks."""
    traces = {
        "chain": generators.chain(24),
        "residual": generators.residual(10),
        "unet": generators.unet(4),
        "tree": generators.tree(4),
        "rnn": generators.rnn(20),
    }
    return {name: Graph.from_trace(trace) for name, trace in traces.items()}


def planned(graph: Graph, budget: str, tier: Tier | None = None, hint: Plan | None = None) -> Plan | None:
    """Return a verified plan, no worse than the hint; None if there is none inside the budget."""
    try:
        found = plan(graph, budget, time_limit=SECONDS, offload=tier, hint=hint)
    except BudgetError:
        return None
    verify(graph, found, budget)
    return found


def cell(found: Plan | None) -> str:
    return "–" if found is None else f"{found.overhead:.1%} ({found.gap:.1%})"


def main() -> None:
    rows, worse, slower = [], 0, 0
    for name, graph in networks().items():
        for budget in BUDGETS:
            recomputed = planned(graph, budget)
            row, costs = [name, budget, cell(recomputed)], []
            for relative in BANDWIDTHS:
                tier = Tier(bytes=PLENTY, bandwidth=relative * graph.peak_bytes / graph.cost)
                found = planned(graph, budget, tier, recomputed)
                row.append(cell(found))
                costs.append(math.inf if found is None else found.cost)
            limit = math.inf if recomputed is None else recomputed.cost * (1 + 1e-9)
            worse += sum(cost > limit for cost in costs)
            slower += sum(quicker > slow * (1 + 1e-9) for slow, quicker in pairwise(costs))
            rows.append(row)
    count = len(rows) * len(BANDWIDTHS)
    publish(
        "Plans with a tier",
        markdown(["step", "budget", "recompute only", *(f"bandwidth {each}" for each in BANDWIDTHS)], rows),
        notes="Overhead over running every op once, and in brackets how far at most it is from the optimum, as proven. "
        f"–: no plan was found in the time given. Of {count} plans with a tier, {worse} cost more than the plan "
        f"without, and {slower} more than the plan with the next lower bandwidth.",
    )


if __name__ == "__main__":
    main()
