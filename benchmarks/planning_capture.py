"""Captures the graphs of the planning benchmarks: python benchmarks/planning_capture.py DIR [NAME ...]

Two files per network: NAME.graph as captured, and NAME.plain.graph without workspaces, as Checkmate counts.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from planning_models import MODELS, make
from remint import Graph, capture
from remint.units import format_bytes, format_seconds


def without_workspaces(graph: Graph) -> Graph:
    ops = (
        replace(op, outputs={v: b for v, b in op.outputs.items() if not v.endswith(".workspace")}) for op in graph.ops
    )
    return Graph(tuple(ops), graph.constants, graph.outputs)


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or MODELS:
        began = time.perf_counter()
        graph = capture(*make(name))
        graph.save(folder / f"{name}.graph")
        without_workspaces(graph).save(folder / f"{name}.plain.graph")
        edges = sum(len([v for v in op.inputs if v not in graph.constants]) for op in graph.ops)
        print(
            f"{name}: {len(graph.ops)} ops, {edges} edges, {format_seconds(graph.cost)}, peak "
            f"{format_bytes(graph.peak_bytes)}, captured in {time.perf_counter() - began:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
