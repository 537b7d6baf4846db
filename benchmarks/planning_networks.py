"""The captured graphs as the planning benchmarks use them: without workspaces, and with a larger batch.

A network is captured with a batch that one CPU core can run. There weights and their gradients, which no plan
can drop, are most of the memory; `SCALE` says how many times larger the batch is taken to be, by multiplying
the bytes and costs of all that a batch makes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from remint import Graph

# As captured, and how many times that batch is planned.
BATCH = {
    "gpt4": 8,
    "gpt12": 4,
    "gpt48": 2,
    "gpt4-eager": 8,
    "gpt12-eager": 4,
    "gpt48-eager": 2,
    "bert12": 4,
    "unet": 4,
    "resnet18": 16,
    "resnet50": 8,
    "vgg16": 8,
    "vgg19": 8,
    "mobilenet": 16,
    "densenet121": 8,
}
SCALE = {
    "gpt4": 1,
    "gpt12": 4,
    "gpt48": 8,
    "gpt4-eager": 1,
    "gpt12-eager": 4,
    "gpt48-eager": 4,
    "bert12": 4,
    "unet": 1,
    "resnet18": 8,
    "resnet50": 8,
    "vgg16": 8,
    "vgg19": 8,
    "mobilenet": 4,
    "densenet121": 4,
}


def load(folder: Path, name: str) -> Graph:
    """Return a network as it is planned here."""
    return scaled(Graph.load(folder / f"{name}.plain.graph"), SCALE[name])


def scaled(graph: Graph, factor: float) -> Graph:
    """The graph with a larger batch: all grows but weights, their gradients and what else is an output."""
    results = set(graph.outputs)
    constants = {v: int(b * factor) if v.startswith("input") else b for v, b in graph.constants.items()}
    ops = (
        replace(
            op,
            cost=op.cost * factor,
            outputs={v: b if v in results else int(b * factor) for v, b in op.outputs.items()},
        )
        for op in graph.ops
    )
    return Graph(tuple(ops), constants, graph.outputs)
