"""Every planner on every captured graph: python benchmarks/planning_table.py GRAPHS.graph ... -o table.json

Each line of the output file is one plan, verified. `--render table.json` prints it as Markdown. Graphs come
from planning_capture.py. The slow solvers run only where asked (--solvers-at), up to --solver-ops ops.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from remint import BudgetError, Graph, plan, verify
from remint.planners import PLANNERS

SLOW = ("checkmate", "rounding", "rounding-repair", "interval", "search")


def run(options: argparse.Namespace) -> None:
    with options.output.open("a") as file:
        for path in options.graphs:
            graph = Graph.load(path)
            for budget in options.budgets.split(","):
                for name in PLANNERS:
                    ops = len(graph.ops)
                    if name in SLOW and (
                        budget not in options.solvers_at.split(",") or (name != "search" and ops > options.solver_ops)
                    ):
                        continue
                    limit = options.auto_limit if name == "auto" else options.time_limit
                    row = one(graph, budget, name, limit)
                    file.write(json.dumps({"graph": path.name.split(".")[0], "ops": ops, **row}) + "\n")
                    file.flush()


def one(graph: Graph, budget: str, name: str, limit: float) -> dict[str, object]:
    row: dict[str, object] = {"budget": budget, "planner": name}
    began = time.perf_counter()
    try:
        made = plan(graph, budget, name, limit)
    except BudgetError as error:
        return row | {
            "seconds": time.perf_counter() - began,
            "least": (error.min_budget_bytes or 0) / graph.peak_bytes,
            "known": (error.known_budget_bytes or graph.peak_bytes) / graph.peak_bytes,
        }
    verify(graph, made, budget)
    return row | {
        "seconds": made.seconds,
        "overhead": made.overhead,
        "bound": made.bound / graph.cost - 1,
        "gap": made.gap,
        "peak": made.peak_bytes / graph.peak_bytes,
    }


def render(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    cells = {(r["graph"], r["ops"], r["budget"], r["planner"]): r for r in rows}
    keys = list(dict.fromkeys((r["graph"], r["ops"], r["budget"]) for r in rows))
    names = [name for name in PLANNERS if any(r["planner"] == name for r in rows)]
    print("| graph | ops | budget | bound | auto s | " + " | ".join(names) + " |")
    print("|" + "---|" * (5 + len(names)))
    for graph, ops, budget in keys:
        auto = cells.get((graph, ops, budget, "auto"), {})
        bound = f"{auto['bound']:.2%}" if "bound" in auto else "–"
        line = [graph, str(ops), budget, bound, f"{auto.get('seconds', 0):.1f}"]
        for name in names:
            row = cells.get((graph, ops, budget, name))
            if row is None:
                line.append("")
            elif "overhead" in row:
                line.append(f"{row['overhead']:.2%}")
            else:
                line.append(f"(≥{row['known']:.0%})" if name == "auto" else "–")
        print("| " + " | ".join(line) + " |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("graphs", nargs="*", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("planning_table.json"))
    parser.add_argument("--budgets", default="90%,80%,50%,30%")
    parser.add_argument("--time-limit", type=float, default=20)
    parser.add_argument("--auto-limit", type=float, default=60)
    parser.add_argument("--solver-ops", type=int, default=220)
    parser.add_argument("--solvers-at", default="50%")
    parser.add_argument("--render", type=Path)
    options = parser.parse_args()
    if options.render:
        render(options.render)
    else:
        run(options)


if __name__ == "__main__":
    main()
