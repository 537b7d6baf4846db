"""Every planner on captured networks: python benchmarks/planning_table.py GRAPHS [--full]

GRAPHS is the folder that planning_capture.py wrote. Each plan is verified and becomes a line of --output, so
that a run can be taken up where it was ended (--resume). Quick by default; --full has all networks and budgets.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from planning_networks import BATCH, SCALE, load
from remint import BudgetError, Graph, plan, verify
from remint.planners import PLANNERS
from report import markdown, publish

QUICK = ("gpt4", "unet", "vgg16", "mobilenet")
NOTES = """Overhead over running every op once; in brackets the proven bound, where a planner has one; then the seconds.
–: no plan inside the budget in the time given (for `auto`, in brackets, the smallest budget with a known plan and that
below which none exists, in parts of the peak). size: more ops than the planner takes on."""


def run(options: argparse.Namespace) -> None:
    done = set()
    if options.resume and options.output.exists():
        done = {(r["graph"], r["budget"], r["planner"]) for r in map(json.loads, options.output.open())}
    with options.output.open("a" if options.resume else "w") as file:
        for name in options.networks.split(","):
            graph = load(options.graphs, name)
            for budget in options.budgets.split(","):
                for planner in PLANNERS:
                    if (name, budget, planner) in done:
                        continue
                    limit = options.auto_limit if planner == "auto" else options.time_limit
                    row = one(graph, budget, planner, limit)
                    file.write(json.dumps({"graph": name, "ops": len(graph.ops), **row}) + "\n")
                    file.flush()


def one(graph: Graph, budget: str, planner: str, limit: float) -> dict[str, object]:
    row: dict[str, object] = {"budget": budget, "planner": planner}
    began = time.perf_counter()
    try:
        made = plan(graph, budget, planner, limit)
    except BudgetError as error:
        return row | {
            "seconds": time.perf_counter() - began,
            "least": (error.min_budget_bytes or 0) / graph.peak_bytes,
            "known": (error.known_budget_bytes or graph.peak_bytes) / graph.peak_bytes,
            "size": "too large" in str(error),
        }
    seconds = time.perf_counter() - began
    verify(graph, made, budget)
    return row | {"seconds": seconds, "overhead": made.overhead, "bound": made.bound / graph.cost - 1, "gap": made.gap}


def cell(row: dict[str, object]) -> str:
    if "overhead" not in row:
        if row["planner"] == "auto":
            return f"– ({row['known']:.1%}, {row['least']:.1%}) {row['seconds']:.1f} s"
        return "size" if row["size"] else "–"
    bound = f" [{row['bound']:.2%}]" if row["bound"] else ""
    return f"{row['overhead']:.2%}{bound} {row['seconds']:.1f} s"


def render(path: Path) -> str:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    cells = {(r["graph"], r["ops"], r["budget"], r["planner"]): cell(r) for r in rows}
    names = ["auto", *(name for name in PLANNERS if name != "auto")]
    names = [name for name in names if any(r["planner"] == name for r in rows)]
    table = []
    for graph, ops, budget in dict.fromkeys((r["graph"], r["ops"], r["budget"]) for r in rows):
        line = [cells.get((graph, ops, budget, name), "") for name in names]
        table.append([f"{graph} ×{SCALE[graph]}", str(ops), budget, *line])
    return markdown(["network", "ops", "budget", *names], table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("build/planning_table.jsonl"))
    parser.add_argument("--full", action="store_true", help="all networks at 90, 80, 50 and 30%%")
    parser.add_argument("--networks")
    parser.add_argument("--budgets")
    parser.add_argument("--time-limit", type=float, default=3, help="seconds for each planner but auto")
    parser.add_argument("--auto-limit", type=float, default=15)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    options.networks = options.networks or ",".join(BATCH if options.full else QUICK)
    options.budgets = options.budgets or ("90%,80%,50%,30%" if options.full else "50%")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    run(options)
    publish("Planners on captured networks", render(options.output), notes=NOTES, packages=("highspy", "ortools"))


if __name__ == "__main__":
    main()
