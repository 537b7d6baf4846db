"""The steps of a plan: run an op, free a value. How steps are replayed, and where the frees go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from remint.graph.graph import Graph


@dataclass(frozen=True)
class Compute:
    """Run the op with this index."""

    op: int


@dataclass(frozen=True)
class Free:
    """Drop the bytes of a value."""

    value: str


Step = Compute | Free


def replay(graph: Graph, steps: Sequence[Step]) -> tuple[float, int]:
    """Return the cost and the peak of steps; raise if they break a rule."""
    resident: dict[str, int] = dict(graph.constants)
    now = peak = sum(resident.values())
    runs = [0] * len(graph.ops)
    for position, step in enumerate(steps):
        if isinstance(step, Free):
            if step.value in graph.constants:
                raise ValueError(f"step {position} frees the constant {step.value!r}: constants stay resident")
            if step.value not in resident:
                raise ValueError(f"step {position} frees {step.value!r}, which is not resident")
            now -= resident.pop(step.value)
            continue
        if not 0 <= step.op < len(graph.ops):
            raise ValueError(f"step {position} runs op {step.op}: the graph has {len(graph.ops)} ops")
        op = graph.ops[step.op]
        for value in op.inputs:
            if value not in resident:
                raise ValueError(f"step {position}: op {op.name!r} reads {value!r}, which is not resident")
        runs[step.op] += 1
        for value, nbytes in op.outputs.items():
            if value not in resident:
                resident[value] = nbytes
                now += nbytes
        peak = max(peak, now)
    for op, count in zip(graph.ops, runs, strict=True):
        if count == 0:
            raise ValueError(f"op {op.name!r} never runs")
        if count > 1 and not op.rematerializable:
            raise ValueError(f"op {op.name!r} runs {count} times, but must not run twice")
    for value in graph.outputs:
        if value not in resident:
            raise ValueError(f"output {value!r} is not resident at the end")
    return math.fsum(graph.ops[step.op].cost for step in steps if isinstance(step, Compute)), peak


def with_frees(graph: Graph, sequence: Sequence[int]) -> tuple[Step, ...]:
    """Return the steps of a sequence of ops, with each value freed as early as it can be."""
    needed: set[str] = set(graph.outputs)
    frees: list[list[str]] = []
    for index in reversed(sequence):
        op = graph.ops[index]
        gone: list[str] = []
        for value in op.outputs:
            if value not in needed:
                gone.append(value)
            needed.discard(value)
        for value in dict.fromkeys(op.inputs):
            if value not in needed and value not in graph.constants:
                gone.append(value)
                needed.add(value)
        frees.append(gone)
    steps: list[Step] = []
    resident: set[str] = set()
    for index, gone in zip(sequence, reversed(frees), strict=True):
        steps.append(Compute(index))
        resident.update(graph.ops[index].outputs)
        for value in gone:
            if value in resident:
                steps.append(Free(value))
                resident.discard(value)
    return tuple(steps)
