"""The steps of a plan: run an op, free a value, copy one to the tier or back. How they are replayed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from remint.graph.graph import Graph
from remint.graph.tier import Tier, Transfers


@dataclass(frozen=True)
class Compute:
    """Run the op with this index."""

    op: int


@dataclass(frozen=True)
class Free:
    """Drop the bytes of a value."""

    value: str


@dataclass(frozen=True)
class Offload:
    """Begin to copy a resident value to the tier. The copy stays until the last fetch that reads it begins."""

    value: str


@dataclass(frozen=True)
class Fetch:
    """Begin to copy a value back from the tier. Its bytes count from here on."""

    value: str


Step = Compute | Free | Offload | Fetch


@dataclass(frozen=True)
class Replayed:
    """What steps take."""

    cost: float  # until the last op has run and the outputs are there
    peak: int
    tier_peak: int


def replay(graph: Graph, steps: Sequence[Step], tier: Tier | None = None) -> Replayed:
    """Return the cost and the peaks of steps; raise if they break a rule."""
    resident: dict[str, int] = dict(graph.constants)
    now = peak = sum(resident.values())
    runs = [0] * len(graph.ops)
    fetches = fetches_of(steps)
    transfers = Transfers(tier)
    for position, step in enumerate(steps):
        if isinstance(step, Compute):
            if not 0 <= step.op < len(graph.ops):
                raise ValueError(f"step {position} runs op {step.op}: the graph has {len(graph.ops)} ops")
            op = graph.ops[step.op]
            for value in op.inputs:
                if value not in resident:
                    raise ValueError(f"step {position}: op {op.name!r} reads {value!r}, which is not resident")
                transfers.read(value)
            runs[step.op] += 1
            for value, source in op.consumes.items():
                if value in resident:
                    raise ValueError(
                        f"step {position}: op {op.name!r} makes {value!r}, which is resident, from {source!r}"
                    )
                transfers.free(source)
                now -= resident.pop(source)
            for value, nbytes in op.outputs.items():
                if value not in resident:
                    resident[value] = nbytes
                    now += nbytes
            transfers.compute(op.cost)
            peak = max(peak, now)
            continue
        if step.value in graph.constants:
            verb = "frees" if isinstance(step, Free) else "moves"
            raise ValueError(f"step {position} {verb} the constant {step.value!r}: constants stay resident")
        if isinstance(step, Fetch):
            if step.value in resident:
                raise ValueError(f"step {position} fetches {step.value!r}, which is resident")
            nbytes = graph.nbytes(step.value)
            transfers.fetch(step.value, nbytes)
            resident[step.value] = nbytes
            now += nbytes
            peak = max(peak, now)
            continue
        if step.value not in resident:
            what = "frees" if isinstance(step, Free) else "offloads"
            raise ValueError(f"step {position} {what} {step.value!r}, which is not resident")
        if isinstance(step, Offload):
            transfers.offload(step.value, resident[step.value], fetches[position])
        else:
            transfers.free(step.value)
            now -= resident.pop(step.value)
    for op, count in zip(graph.ops, runs, strict=True):
        if count == 0:
            raise ValueError(f"op {op.name!r} never runs")
        if count > 1 and not op.rematerializable:
            raise ValueError(f"op {op.name!r} runs {count} times, but must not run twice")
    for value in graph.outputs:
        if value not in resident:
            raise ValueError(f"output {value!r} is not resident at the end")
        transfers.read(value)
    computed = (graph.ops[step.op].cost for step in steps if isinstance(step, Compute))
    return Replayed(math.fsum((*computed, *transfers.waits)), peak, transfers.peak)


def fetches_of(steps: Sequence[Step]) -> dict[int, int]:
    """Return how often the copy that each `Offload` makes is fetched, by the position of the step."""
    count: dict[int, int] = {}
    open_: dict[str, int] = {}  # value → position of the last step that offloaded it
    for position, step in enumerate(steps):
        if isinstance(step, Offload):
            open_[step.value] = position
            count[position] = 0
        elif isinstance(step, Fetch) and step.value in open_:
            count[open_[step.value]] += 1
    return count


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
        consumed = set(op.consumes.values())
        for value in dict.fromkeys(op.inputs):
            if value not in needed and value not in graph.constants:
                if value not in consumed:
                    gone.append(value)
                needed.add(value)
        frees.append(gone)
    steps: list[Step] = []
    resident: set[str] = set()
    for index, gone in zip(sequence, reversed(frees), strict=True):
        op = graph.ops[index]
        # Where an op in place runs again for another output, the old bytes go first.
        for value in op.consumes:
            if value in resident:
                steps.append(Free(value))
        steps.append(Compute(index))
        resident.update(op.outputs)
        resident.difference_update(op.consumes.values())
        for value in gone:
            if value in resident:
                steps.append(Free(value))
                resident.discard(value)
    return tuple(steps)


def with_consumed(graph: Graph, sequence: Sequence[int]) -> tuple[int, ...]:
    """Return a sequence that also makes again, just in time, what was consumed before an op reads it.

    Raises `ValueError` if that cannot be made again.
    """
    if not any(op.consumes for op in graph.ops):
        return tuple(sequence)
    there: set[str] = set()
    result: list[int] = []
    ran = [False] * len(graph.ops)
    for index in sequence:
        stack = [index]
        while stack:
            at = stack[-1]
            op = graph.ops[at]
            missing = [graph.makers[v] for v in op.inputs if v not in there and v not in graph.constants]
            if missing:
                stack.append(missing[0])
                continue
            if ran[at] and not op.rematerializable:
                raise ValueError(f"op {op.name!r} must not run twice, and what it made was consumed")
            ran[at] = True
            result.append(at)
            there.difference_update(op.consumes.values())
            there.update(op.outputs)
            stack.pop()
    return tuple(result)
