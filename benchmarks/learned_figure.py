"""The figure of the README: time over a plain step against the budget; greedy, learned, planned, and a proven bound.

python benchmarks/learned_figure.py            # goes on where it was stopped; about ten minutes in all

Each point is measured as in learned.py. Points that were measured before are read from a file beside the results;
`--again` measures them anew. The bound is proven for the op stream of one step with measured costs, as a planner sees
it: no schedule that runs ops first in the order of the program recomputes less. It counts kernels only.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from matplotlib.figure import Figure

import learned
import remint
import report
import workloads

POINTS = {
    "unet": (60, 50, 45, 40),
    "gpt": (40, 30, 25, 21),
    "lstm": (60, 50, 40, 35),
    "mamba": (60, 50, 45),
}
TITLES = {"unet": "U-Net", "gpt": "GPT", "lstm": "LSTM, cell by cell", "mamba": "Mamba"}
KINDS = {"greedy": "tab:red", "learned": "tab:blue", "planned": "tab:green", "bound": "black"}
BOUND_SECONDS = 5
PLANNING_SECONDS = 12.0  # to wait for the plan of a point
ALIGNMENT = 64
KEPT = report.RESULTS / "learned_figure.json"
IMAGE = Path(__file__).parents[1] / "docs" / "images" / "learned.svg"


def bound(name: str, budget: int) -> float | None:
    """Return a proven lower bound of the slowdown of one step; None if nothing was proven in time."""
    net, inputs = workloads.make(name)
    training = learned.Training(net, inputs)
    training.step()
    with remint.record() as recording:
        training.step()
    graph = remint.Graph.from_trace(recording.trace, inplace="ghost", alignment=ALIGNMENT)
    try:
        return remint.plan(graph, budget, time_limit=BOUND_SECONDS).bound / graph.cost
    except remint.BudgetError:
        return None


def point(name: str, percent: int, rounds: int) -> dict[str, float | None]:
    """Measure one budget."""
    net, inputs = workloads.make(name)
    training = learned.Training(net, inputs)
    with remint.budget("8GiB", learn=False) as run:
        training.step()
        training.step()
    budget = run.peak_bytes * percent // 100

    def ratio(*, learn: bool, plan: bool) -> float | None:
        try:
            return float(learned.measure(name, budget, learn=learn, plan=plan, rounds=rounds).ratio)
        except ValueError:  # it took too long, or did not fit
            return None

    return {
        "greedy": ratio(learn=False, plan=False),
        "learned": ratio(learn=True, plan=False),
        "planned": ratio(learn=True, plan=True),
        "bound": bound(name, budget),
    }


def draw(points: dict[str, dict[str, float | None]]) -> Figure:
    """Return the figure: a panel per network."""
    figure = Figure(figsize=(11, 3), layout="constrained")
    axes = figure.subplots(1, len(POINTS))
    for axis, (name, percents) in zip(axes, POINTS.items(), strict=True):
        for kind, colour in KINDS.items():
            found = [(percent, points.get(f"{name}:{percent}", {}).get(kind)) for percent in percents]
            known = [(percent, value) for percent, value in found if value is not None]
            style = "--" if kind == "bound" else "o-"
            axis.plot([p for p, _ in known], [v for _, v in known], style, color=colour, label=kind, markersize=3)
        axis.set(title=TITLES[name], xlabel="budget, % of the peak", ylim=(0.95, 2.5))
        axis.invert_xaxis()
    axes[0].set_ylabel("time over a plain step")
    axes[0].legend(frameon=False)
    return figure


def main() -> None:
    """Measure what is missing, and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--again", action="store_true", help="measure all points anew")
    args = parser.parse_args()
    torch.set_num_threads(1)
    learned.PLANNING_SECONDS = PLANNING_SECONDS
    points: dict[str, dict[str, float | None]] = {}
    if KEPT.exists() and not args.again:
        points = json.loads(KEPT.read_text())
    for name, percents in POINTS.items():
        for percent in percents:
            if f"{name}:{percent}" not in points:
                points[f"{name}:{percent}"] = point(name, percent, args.rounds)
                KEPT.write_text(json.dumps(points, indent=1))
                print(name, percent, points[f"{name}:{percent}"], flush=True)
    figure = draw(points)
    figure.savefig(IMAGE)
    rows = [
        [
            TITLES[name],
            f"{percent}%",
            *("–" if (value := points[f"{name}:{percent}"][kind]) is None else f"{value:.3f}" for kind in KINDS),
        ]
        for name, percents in POINTS.items()
        for percent in percents
    ]
    table = report.markdown(["network", "budget", *KINDS], rows)
    report.publish("Time over a plain step against the budget", table, figure=figure, packages=["torch"])


if __name__ == "__main__":
    main()
