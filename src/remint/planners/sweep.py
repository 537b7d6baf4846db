"""Planners on the steps of traces, as rows of the same shape as those of a sweep over policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from remint.errors import BudgetError
from remint.graph import Graph
from remint.planners import PLANNERS, plan
from remint.trace import Trace
from remint.units import parse_budget


def sweep_planners(
    traces: Mapping[str, Trace], planners: Sequence[str], budgets: Sequence[int | str], *, time_limit: float = 10
) -> list[dict[str, Any]]:
    """Return a row per trace, planner and budget; percentages are of the trace's peak, as for policies.

    >>> from remint import generators
    >>> rows = sweep_planners({"chain": generators.chain(16)}, ["chen-sqrt"], ["50%"])
    >>> [(row["policy"], row["status"]) for row in rows]
    [('plan: chen-sqrt', 'ok')]
    """
    unknown = [name for name in planners if name not in PLANNERS]
    if unknown:
        raise ValueError(f"there is no planner {unknown[0]!r}: choose from {', '.join(PLANNERS)}")
    rows = []
    for name, trace in traces.items():
        graph = Graph.from_trace(trace)
        for planner in planners:
            for budget in budgets:
                budget_bytes = parse_budget(budget, peak_bytes=trace.peak_bytes)
                rows.append({"trace": name, "budget": budget} | _planned(graph, planner, budget_bytes, time_limit))
    return rows


def _planned(graph: Graph, planner: str, budget_bytes: int, time_limit: float) -> dict[str, Any]:
    row: dict[str, Any] = {
        "status": "oom",
        "policy": f"plan: {planner}",
        "memory": "plan",
        "budget_bytes": budget_bytes,
        "min_budget_bytes": graph.min_budget_bytes,
        "peak_bytes": 0,
        "num_ops": len(graph.ops),
        "num_evictions": 0,
        "num_rematerializations": 0,
        "computed_seconds": graph.cost,
        "rematerialized_seconds": 0.0,
        "search_seconds": 0.0,
        "fragmentation": 0.0,
        "slowdown": 1.0,
        "failure": None,
    }
    try:
        made = plan(graph, budget_bytes, planner, time_limit)
    except BudgetError as error:
        return row | {"failure": str(error)}
    again = len(made.sequence) - len(graph.ops)
    return row | {
        "status": "ok",
        "peak_bytes": made.peak_bytes,
        "num_evictions": again,
        "num_rematerializations": again,
        "rematerialized_seconds": made.cost - graph.cost,
        "search_seconds": made.seconds,
        "slowdown": 1 + made.overhead,
    }
