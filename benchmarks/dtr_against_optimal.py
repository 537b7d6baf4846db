"""DTR's figure 3: greedy online policies against optimal plans, and against Chen's, on the same steps.

Policies run on ideal memory, as in the paper, and on the arena; plans count bytes only, like ideal memory. An `auto`
plan comes with a bound: no schedule of its class is cheaper.
"""

from __future__ import annotations

from remint import Graph, Sweep, generators, plan, sweep
from remint.errors import BudgetError
from remint.planner_sweep import sweep_planners
from remint.report.data import sweep_data
from remint.report.figures import sweep_figure
from remint.units import parse_budget
from report import FULL, markdown, publish
from traces import all_traces


def main() -> None:
    traces = {"chain": generators.chain(32), "unet": generators.unet(4)}
    if FULL:
        traces |= {name: trace for name, trace in all_traces().items() if trace.num_ops <= 1500}
    percents = range(90, 19, -10) if FULL else (80, 60, 40)
    budgets = [f"{percent}%" for percent in percents]
    limit = 30 if FULL else 5
    rows = []
    for memory, policies in (("ideal", ["dtr", "dtr-eq", "lru"]), ("arena", ["coop"])):
        found = sweep(traces, budgets=budgets, policies=policies, memory=memory, jobs=1)  # type: ignore[arg-type]
        rows += [row | {"policy": f"{row['policy']}, {memory}"} for row in found]
    rows += sweep_planners(traces, ["auto", "chen-sqrt"], budgets, time_limit=limit)
    table = []
    for name, trace in traces.items():
        for policy in dict.fromkeys(row["policy"] for row in rows):
            cells = [
                f"{row['slowdown']:.3f}" if row["status"] == "ok" else row["status"]
                for row in rows
                if (row["trace"], row["policy"]) == (name, policy)
            ]
            table.append([name, policy, *cells])
        graph = Graph.from_trace(trace)
        bounds = []
        for budget in budgets:
            try:
                made = plan(graph, parse_budget(budget, peak_bytes=trace.peak_bytes), "auto", limit)
                bounds.append(f"{made.bound / graph.cost:.3f}")
            except BudgetError:
                bounds.append("none found")
        table.append([name, "proven bound", *bounds])
    publish(
        "DTR's figure 3: greedy against optimal",
        markdown(["trace", "policy or planner", *budgets], table),
        figure=sweep_figure(sweep_data(Sweep(rows))),
    )


if __name__ == "__main__":
    main()
