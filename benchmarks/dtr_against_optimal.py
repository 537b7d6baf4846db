"""DTR's figure 3: greedy online policies against optimal plans, and against Chen's, on the same steps.

Policies run on ideal memory, as in the paper, and on the arena; plans count bytes only, like ideal memory. An `auto`
plan comes with a bound: no schedule of its class is cheaper.
"""

from __future__ import annotations

from typing import Any

from remint import Graph, Sweep, Trace, generators, plan, sweep
from remint.errors import BudgetError
from remint.planners.sweep import sweep_planners
from remint.report.data import sweep_data
from remint.report.figures import sweep_figure
from remint.units import parse_budget
from report import FULL, markdown, publish
from traces import all_traces

TIME_LIMIT = 10 if FULL else 5  # seconds per plan


def planned(name: str, trace: Trace, budget: str) -> dict[str, Any]:
    """Return the best plan as a row of the sweep, with its proven bound."""
    graph = Graph.from_trace(trace)
    row = {
        "trace": name,
        "budget": budget,
        "policy": "plan: auto",
        "budget_bytes": parse_budget(budget, peak_bytes=trace.peak_bytes),
    }
    try:
        made = plan(graph, row["budget_bytes"], "auto", TIME_LIMIT)
    except BudgetError:
        return row | {
            "status": "oom",
            "bound": "none found",
            "peak_bytes": 0,
            "num_rematerializations": 0,
            "slowdown": 1.0,
        }
    again = len(made.sequence) - len(graph.ops)
    figures = {"peak_bytes": made.peak_bytes, "num_rematerializations": again, "slowdown": 1 + made.overhead}
    return row | {"status": "ok", "bound": f"{made.bound / graph.cost:.3f}"} | figures


def main() -> None:
    traces = {"chain": generators.chain(32), "unet": generators.unet(4)}
    if FULL:
        traces |= {name: trace for name, trace in all_traces().items() if trace.num_ops <= 1500}
    percents = range(90, 19, -10) if FULL else (80, 60, 40)
    budgets = [f"{percent}%" for percent in percents]
    rows: list[dict[str, Any]] = []
    for memory, policies in (("ideal", ["dtr", "dtr-eq", "lru"]), ("arena", ["coop"])):
        found = sweep(traces, budgets=budgets, policies=policies, memory=memory, jobs=1)  # type: ignore[arg-type]
        rows += [row | {"policy": f"{row['policy']}, {memory}"} for row in found]
    rows += sweep_planners(traces, ["chen-sqrt"], budgets)
    rows += [planned(name, trace, budget) for name, trace in traces.items() for budget in budgets]
    table = []
    for name in traces:
        here = [row for row in rows if row["trace"] == name]
        for policy in dict.fromkeys(row["policy"] for row in here):
            found = [row for row in here if row["policy"] == policy]
            table.append(
                [name, policy, *(f"{r['slowdown']:.3f}" if r["status"] == "ok" else r["status"] for r in found)]
            )
        table.append([name, "proven bound", *(row["bound"] for row in here if "bound" in row)])
    publish(
        "DTR's figure 3: greedy against optimal",
        markdown(["trace", "policy or planner", *budgets], table),
        figure=sweep_figure(sweep_data(Sweep(rows))),
    )


if __name__ == "__main__":
    main()
