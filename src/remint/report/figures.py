"""The same pictures as on the page, as PNG, SVG or PDF files; needs matplotlib (`pip install remint[plot]`)."""

from __future__ import annotations

import math
import os
from typing import Any

from remint.graph import Plan
from remint.report.data import Item, advice_data, run_data, sweep_data, trace_data
from remint.report.plan_data import plan_data
from remint.results import Sweep
from remint.results.advice import Advice
from remint.results.block_log import AWAY
from remint.results.run import Run
from remint.trace import Trace

_COLORS = {"pinned": "#7b8794", "first": "#4a86e8", "again": "#f39c1f", "fetched": "#2e9d5b", "scratch": "#c4a6e8"}
_LEFT = {"evicted": "#d5322d", "offloaded": "#0b8793"}
_MIB = 2.0**20


def write_figure(path: str | os.PathLike[str], item: Item) -> None:
    """Write the picture of a run (memory, arena), a plan (memory, schedule) or a sweep; the name says the format."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("static pictures need matplotlib: pip install matplotlib, or write a .html file") from error
    if isinstance(item, Advice):
        figure = sweep_figure([advice_data(item)["chart"]])
    elif isinstance(item, Sweep):
        figure = sweep_figure(sweep_data(item))
    elif isinstance(item, Plan):
        figure = _run(Figure, plan_data(item))
    elif isinstance(item, Trace):
        figure = _run(Figure, trace_data(item))
    else:
        figure = _run(Figure, run_data(item if isinstance(item, Run) else item.finished()))
    figure.savefig(path, dpi=150)


def _run(make: Any, data: dict[str, Any]) -> Any:
    second = "rects" if "rects" in data else "schedule" if "schedule" in data else None
    figure = make(figsize=(10, 7 if second else 3.4), layout="constrained")
    heights = {"height_ratios": [2, 3]} if second else {}
    axes = figure.subplots(2 if second else 1, 1, sharex=True, squeeze=False, **heights)[:, 0]
    if "line" in data:
        _memory(axes[0], data)
    if second == "rects":
        _arena(axes[1], data)
    elif second == "schedule":
        _schedule(axes[1], data["schedule"])
    axes[-1].set_xlabel("time of ops (s)")
    figure.suptitle(data["label"], x=0.01, ha="left")
    return figure


def _memory(axes: Any, data: dict[str, Any]) -> None:
    line = data["line"]
    resident = [n / _MIB for n in line["resident"]]
    axes.fill_between(line["t"], resident, step="post", color=_COLORS["first"], alpha=0.3, label="resident")
    if line["pinned"]:
        pinned = [n / _MIB for n in line["pinned"]]
        axes.fill_between(line["t"], pinned, step="post", color=_COLORS["pinned"], label="of which pinned")
        offloaded = [n / _MIB for n in line["offloaded"] or [0] * len(resident)]
        needed = [r + e / _MIB + o for r, e, o in zip(resident, line["evicted"], offloaded, strict=True)]
        more = " + offloaded" if line["offloaded"] else ""
        axes.step(
            line["t"], needed, where="post", color=_LEFT["evicted"], ls=":", lw=1, label=f"resident + evicted{more}"
        )
        if line["offloaded"]:
            axes.step(line["t"], offloaded, where="post", color=_LEFT["offloaded"], lw=1.2, label="in the tier only")
    if data["budget"]:
        axes.axhline(data["budget"] / _MIB, color="black", ls="--", lw=1, label="budget")
    for at, name in data["marks"]:
        axes.axvline(at, color="gray", ls=":", lw=1)
        axes.annotate(name, (at, axes.get_ylim()[1]), xytext=(3, -9), textcoords="offset points", color="gray")
    axes.set_ylabel("MiB")
    axes.legend(loc="lower left", fontsize=8, framealpha=0.9)


def _arena(axes: Any, data: dict[str, Any]) -> None:
    from matplotlib.collections import LineCollection, PatchCollection
    from matplotlib.patches import Rectangle

    rects = data["rects"]
    rows = list(zip(*(rects[name] for name in ("begin", "end", "address", "nbytes", "kind", "ending")), strict=True))
    for kind, color in _COLORS.items():
        boxes = [Rectangle((b, a / _MIB), e - b, n / _MIB) for b, e, a, n, k, _ in rows if k == kind]
        axes.add_collection(PatchCollection(boxes, facecolor=color, edgecolor="white", linewidth=0.1))
    for left, color in _LEFT.items():
        edges = [[(e, a / _MIB), (e, (a + n) / _MIB)] for _, e, a, n, k, end in rows if end == left and k not in AWAY]
        axes.add_collection(LineCollection(edges, colors=color, linewidths=1))
    axes.set_xlim(0, data["end"])
    axes.set_ylim(0, data["budget"] / _MIB)
    axes.set_ylabel("address (MiB)")
    names = {"pinned": "pinned", "first": "first time", "again": "rematerialized", "scratch": "scratch"}
    endings = ["evicted"]
    if "transfers" in data:
        names["fetched"] = "fetched"
        endings.append("offloaded")
    handles = [Rectangle((0, 0), 1, 1, color=_COLORS[kind], label=name) for kind, name in names.items()]
    handles += [Rectangle((0, 0), 1, 1, color=_LEFT[ending], label=f"{ending} here") for ending in endings]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=7, fontsize=8, frameon=False)


def _schedule(axes: Any, schedule: dict[str, list[Any]]) -> None:
    for again, color in ((False, _COLORS["first"]), (True, _COLORS["again"])):
        rows = [k for k, value in enumerate(schedule["again"]) if value == again]
        axes.scatter(
            [schedule["begin"][k] for k in rows],
            [schedule["op"][k] for k in rows],
            s=5,
            color=color,
            label="rematerialized" if again else "first run",
        )
    axes.set_ylabel("op of the graph")
    axes.legend(fontsize=8)


def sweep_figure(charts: list[dict[str, Any]]) -> Any:
    """Return slowdown against budget as a figure of matplotlib, a panel per trace."""
    from matplotlib.figure import Figure

    columns = min(2, len(charts)) or 1
    rows = -(-len(charts) // columns) or 1
    figure = Figure(figsize=(6.4 * columns, 4.2 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax, chart in zip(axes, charts, strict=False):
        for series in chart["series"]:
            # A point that is missing breaks the line.
            slowdowns = [math.nan if p["slowdown"] is None else p["slowdown"] for p in series["points"]]
            style = "--" if series["planner"] else "-"
            width = 2.5 if series["prominent"] else 1.2
            ax.plot(
                [p["x"] for p in series["points"]], slowdowns, style, lw=width, marker="o", ms=3, label=series["name"]
            )
        ax.set_title(chart["name"])
        ax.set_xlabel("budget, % of the peak" if chart["percent"] else "budget, bytes")
        ax.set_ylabel("slowdown")
        ax.grid(alpha=0.3)
    if charts:
        axes[0].legend(fontsize=7)
    for ax in axes[len(charts) :]:
        ax.axis("off")
    return figure
