"""Files of any kind that a report can show, told apart by what is in them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from remint.graph import Graph, Plan
from remint.offload import Offload
from remint.report.data import Item, cost_curve
from remint.report.figures import write_figure
from remint.report.memory_viz import write_snapshot
from remint.report.page import write_html
from remint.results import Sweep
from remint.results.run import Run
from remint.simulator.simulate import simulate
from remint.trace import Trace

_PICTURES = (".png", ".svg", ".pdf")


def write(
    path: str | os.PathLike[str], items: Sequence[Item] | Mapping[str, Item], *, title: str | None = None
) -> None:
    """Write `items` as what the name of the file says: .html, a picture, or .pickle for PyTorch's memory viewer."""
    suffix = Path(path).suffix
    if suffix in (".html", ".htm"):
        write_html(path, items, title=title)
        return
    if suffix not in (*_PICTURES, ".pickle"):
        raise ValueError(f"{path}: a report is a .html, .png, .svg, .pdf or .pickle file; choose one with -o")
    shown = list(items.values() if isinstance(items, Mapping) else items)
    if len(shown) != 1:
        raise ValueError(f"{path} shows one item, not {len(shown)}: write a .html file for several")
    if suffix in _PICTURES:
        write_figure(path, shown[0])
    elif isinstance(shown[0], Run):
        write_snapshot(path, shown[0])
    else:
        raise ValueError(f"{path}: PyTorch's memory viewer shows runs; for a trace, give a budget")


def load_items(
    paths: Sequence[str],
    *,
    budget: str | None = None,
    policies: Sequence[str] = ("coop",),
    curves: bool = False,
    offload: Offload | None = None,
) -> dict[str, Item]:
    """Read files. With a budget, traces are run inside it, with each policy, and with `curves` inside others, too.

    `offload` is a tier for these runs.
    """
    items: dict[str, Item] = {}
    for path in paths:
        name = Path(path).name.split(".")[0]
        item = load_item(path)
        if isinstance(item, Trace) and budget is not None:
            for policy in policies:
                run = simulate(item, budget=budget, policy=policy, memory="arena", offload=offload, blocks=True)
                items[_unused(items, f"{name}, {policy}" if len(policies) > 1 else name)] = run
            if curves:
                items[_unused(items, f"{name}, budgets")] = cost_curve(item, name, offload=offload)
        else:
            items[_unused(items, name)] = item
    return items


def load_item(path: str) -> Item:
    """Read one file of any kind."""
    if path.endswith((".log", ".log.gz")):
        return Trace.from_dtr_log(path)
    if path.endswith(".gz"):
        return Trace.load(path)
    text = Path(path).read_text()
    try:
        data = json.loads(text)
    except json.JSONDecodeError:
        # A trace is a document per line.
        return Trace.load(path)
    if isinstance(data, list) and data and all(isinstance(row, dict) and "policy" in row for row in data):
        return Sweep(data)
    kind = data.get("format") if isinstance(data, dict) else None
    try:
        return _item(path, kind, data)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} says it is a {kind} file, but is damaged: {error!r}") from error


def _item(path: str, kind: str | None, data: dict[str, Any]) -> Item:
    if kind == "remint.run":
        return Run.from_json(data)
    if kind == "remint.plan":
        return Plan.from_json(data)
    if kind == "remint.graph":
        graph = Graph.from_json(data)
        return Plan.from_sequence(graph, range(len(graph.ops)), planner="nobody: every op once")
    raise ValueError(f"{path} is no run, plan, graph, trace or sweep of remint's: its format is {kind!r}")


def _unused(items: Mapping[str, Item], name: str) -> str:
    number = 2
    unused = name
    while unused in items:
        unused, number = f"{name} ({number})", number + 1
    return unused
