"""What the page shows of a plan, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from remint.graph import Compute, Fetch, Free, Offload, Op, Plan
from remint.graph.steps import fetches_of
from remint.graph.tier import Transfers
from remint.report.columns import again_columns, holder_rows, line_columns
from remint.results.holders import Holder, where
from remint.results.run import RematerializedOp
from remint.units import format_bytes, format_seconds


def plan_data(plan: Plan, name: str = "") -> dict[str, Any]:
    """Return the figures, the memory over time and the schedule of a plan."""
    graph = plan.graph
    resident = dict(graph.constants)
    now = 0.0
    used = graph.constant_bytes
    times: list[float] = [0.0]
    nbytes: list[int] = [used]
    schedule: dict[str, list[Any]] = {"op": [], "begin": [], "end": [], "again": []}
    runs = [0] * len(graph.ops)
    marks: list[list[Any]] = []
    clock, fetches = Transfers(plan.tier), fetches_of(plan.steps)
    for position, step in enumerate(plan.steps):
        if isinstance(step, Offload):
            clock.offload(step.value, resident[step.value], fetches[position])
            continue
        if not isinstance(step, Compute):
            if isinstance(step, Free):
                clock.free(step.value)
                used -= resident.pop(step.value)
            else:
                resident[step.value] = graph.nbytes(step.value)
                clock.fetch(step.value, resident[step.value])
                used += resident[step.value]
            now = clock.now
            nbytes.append(used)
            times.append(now)
            continue
        op = graph.ops[step.op]
        for value in op.inputs:
            clock.read(value)
        for value in op.consumes.values():
            clock.free(value)
            used -= resident.pop(value)
        now = clock.now
        for value, size in op.outputs.items():
            used += size if value not in resident else 0
            resident[value] = size
        if not marks and op.source.startswith("backward of "):
            marks.append([now, "backward"])
        for column, entry in zip(schedule.values(), (step.op, now, now + op.cost, runs[step.op] > 0), strict=True):
            column.append(entry)
        times.append(now)
        nbytes.append(used)
        clock.compute(op.cost)
        now = clock.now
        runs[step.op] += 1
    for value in graph.outputs:
        clock.read(value)
    now = clock.now
    again = [
        RematerializedOp(op.name, op.source, count - 1, (count - 1) * op.cost, "")
        for op, count in zip(graph.ops, runs, strict=True)
        if count > 1
    ]
    label = f"plan by {plan.planner or 'hand'}"
    return {
        "type": "plan",
        "label": f"{name}: {label}" if name else label,
        "verdict": _plan_verdict(plan),
        "budget": None,
        "peak": plan.peak_bytes,
        "slowdown": 1 + plan.overhead,
        "times": sum(runs) - len(runs),
        "failure": None,
        "marks": marks,
        "line": line_columns(np.array(times), np.array(nbytes, dtype=np.int64)),
        "end": now,
        "schedule": schedule,
        "holders": holder_rows(plan_holders(plan)),
        "ops": [[op.name, op.source, op.cost] for op in graph.ops],
        **again_columns(sorted(again, key=lambda row: -row.seconds)),
        "cards": [
            [format_bytes(plan.peak_bytes), f"peak, {format_bytes(graph.peak_bytes)} without rematerialization"],
            [f"+{plan.overhead:.2%}", f"overhead, on {format_seconds(graph.cost)}"],
            ["optimal" if plan.optimal else f"{plan.gap:.2%}", "proven" if plan.optimal else "gap to the bound"],
            [f"{sum(runs) - len(runs):,}", f"rematerializations of {len(graph.ops):,} ops"],
            [format_seconds(plan.seconds), f"planning, by {plan.planner or 'hand'}"],
        ],
    }


def plan_holders(plan: Plan) -> tuple[Holder, ...]:
    """Return what holds memory when a plan has most of it. The largest come first."""
    graph = plan.graph
    backward = {k for k, op in enumerate(graph.ops) if op.source.startswith("backward of ")}
    read_by_backward = {value for k in backward for value in graph.ops[k].inputs}
    resident = dict(graph.constants)
    most = dict(resident)
    used = peak = graph.constant_bytes
    for step in plan.steps:
        made: Mapping[str, int] = {}
        gone: Iterable[str] = ()
        if isinstance(step, Compute):
            made, gone = graph.ops[step.op].outputs, graph.ops[step.op].consumes.values()
        elif isinstance(step, Fetch):
            made = {step.value: graph.nbytes(step.value)}
        elif isinstance(step, Free):
            gone = (step.value,)
        used -= sum(resident.pop(value) for value in gone)
        used += sum(nbytes for value, nbytes in made.items() if value not in resident)
        resident.update(made)
        if used > peak:
            peak, most = used, dict(resident)
    nbytes: Counter[tuple[str, str]] = Counter()
    count: Counter[tuple[str, str]] = Counter()
    for value, size in most.items():
        if value in graph.constants:
            key = ("weights and inputs", "")
        else:
            maker = graph.makers[value]
            kept = "gradients" if value in graph.outputs else "temporaries"
            kind = kept if maker in backward else "activations" if value in read_by_backward else "temporaries"
            # Some graphs do not say where their backward pass begins, nor from which line an op is.
            key = (kind if backward else "made by ops", where(graph.ops[maker].source) or _operator(graph.ops[maker]))
        nbytes[key] += size
        count[key] += 1
    return tuple(Holder(*key, count[key], size) for key, size in nbytes.most_common() if size)


def _operator(op: Op) -> str:
    return op.name.partition("#")[0]


def _plan_verdict(plan: Plan) -> str:
    need, peak = format_bytes(plan.graph.peak_bytes), format_bytes(plan.peak_bytes)
    if plan.peak_bytes >= plan.graph.peak_bytes:
        return f"Takes {peak}, as it is."
    proof = "no schedule is cheaper" if plan.optimal else f"at most {plan.gap:.1%} more than the cheapest schedule"
    tier = f" with {format_bytes(plan.offloaded_bytes)} offloaded" if plan.offloaded_bytes else ""
    return f"Fits {need} into {peak}{tier}; {plan.overhead:.1%} slower, {proof}."
