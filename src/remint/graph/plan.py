"""Plan: which op runs when and what is freed when; `verify` replays one and knows no planner."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from remint.errors import BudgetError
from remint.file_format import check_format
from remint.graph.graph import Graph
from remint.units import format_bytes, format_seconds, parse_budget

VERSION = 1

SCHEDULE_CLASS = (
    "ops first run in the graph's order; what is rematerialized between the first runs of two neighbouring "
    "ops runs in the graph's order, each op at most once"
)


@dataclass(frozen=True)
class Compute:
    """Run the op with this index."""

    op: int


@dataclass(frozen=True)
class Free:
    """Drop the bytes of a value."""

    value: str


Step = Compute | Free


@dataclass(frozen=True)
class Plan:
    """A schedule for a graph. `bound` is proven: no schedule of `SCHEDULE_CLASS` costs less."""

    graph: Graph
    steps: tuple[Step, ...]
    cost: float
    peak_bytes: int
    bound: float
    planner: str = ""
    seconds: float = 0.0

    @classmethod
    def from_sequence(
        cls,
        graph: Graph,
        sequence: Sequence[int],
        *,
        bound: float | None = None,
        planner: str = "",
        seconds: float = 0.0,
    ) -> Plan:
        """Make a plan of the ops to run, in order, with each value freed as early as it can be."""
        steps = _steps(graph, sequence)
        cost, peak = _replay(graph, steps)
        bound = graph.cost if bound is None else max(graph.cost, bound)
        return cls(graph, steps, cost, peak, min(bound, cost), planner, seconds)

    @property
    def overhead(self) -> float:
        """Time spent on rematerialization, relative to running every op once."""
        return (self.cost - self.graph.cost) / self.graph.cost if self.graph.cost else 0.0

    @property
    def gap(self) -> float:
        """How far the cost can be from the optimum at most, relative to the bound."""
        return max(0.0, self.cost - self.bound) / self.bound if self.bound else 0.0

    @property
    def optimal(self) -> bool:
        """Whether the bound proves that no schedule of the class is cheaper (to one part in a million)."""
        return self.gap <= 1e-6

    @cached_property
    def sequence(self) -> tuple[int, ...]:
        """The ops in the order in which they run."""
        return tuple(step.op for step in self.steps if isinstance(step, Compute))

    def explain(self, limit: int = 20) -> str:
        """Say what is kept, what is rematerialized when and what it costs, by op and source line."""
        graph = self.graph
        runs: dict[int, list[int]] = defaultdict(list)
        for position, op in enumerate(self.sequence):
            runs[op].append(position)
        again = sorted(
            ((len(at) - 1) * graph.ops[op].cost, op) for op, at in runs.items() if len(at) > 1 and graph.ops
        )[::-1]
        extra = self.cost - graph.cost
        kept = [op for op, at in runs.items() if len(at) == 1]
        lines = [
            f"{self.planner or 'plan'}: {format_seconds(self.cost)} (+{self.overhead:.2%}, at most "
            f"{self.gap:.2%} above the optimum), peak {format_bytes(self.peak_bytes)} "
            f"of {format_bytes(graph.peak_bytes)} without rematerialization",
            f"{len(kept)} of {len(graph.ops)} ops run once; {len(again)} are rematerialized, "
            f"for {format_seconds(extra)}:",
        ]
        first = {op: at[0] for op, at in runs.items()}
        order = sorted(first, key=lambda op: first[op])
        frontier = {position: order.index(op) for op, position in first.items()} if again else {}
        stage_of: list[int] = []
        stage = 0
        for position in range(len(self.sequence)):
            stage_of.append(stage)
            if position in frontier:
                stage = frontier[position] + 1
        for seconds, op in again[:limit]:
            item = graph.ops[op]
            where = f"  ({item.source})" if item.source else ""
            before = ", ".join(
                graph.ops[order[min(stage_of[at], len(order) - 1)]].name if stage_of[at] < len(order) else "the end"
                for at in runs[op][1:4]
            )
            more = "" if len(runs[op]) <= 4 else f" and {len(runs[op]) - 4} more"
            lines.append(
                f"  {item.name}: {len(runs[op]) - 1}x for {format_seconds(seconds)} "
                f"({format_bytes(sum(item.outputs.values()))}), before {before}{more}{where}"
            )
        if len(again) > limit:
            rest = math.fsum(seconds for seconds, _ in again[limit:])
            lines.append(f"  … and {len(again) - limit} more ops for {format_seconds(rest)}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data, with its graph: a number runs an op, a name frees a value."""
        return {
            "format": "remint.plan",
            "version": VERSION,
            "planner": self.planner,
            "seconds": self.seconds,
            "cost": self.cost,
            "peak_bytes": self.peak_bytes,
            "bound": self.bound,
            "steps": [step.op if isinstance(step, Compute) else step.value for step in self.steps],
            "graph": self.graph.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Make a plan of what `to_json` returned."""
        check_format(data, "remint.plan", VERSION)
        steps = tuple(Compute(step) if isinstance(step, int) else Free(step) for step in data["steps"])
        return cls(
            Graph.from_json(data["graph"]),
            steps,
            data["cost"],
            data["peak_bytes"],
            data["bound"],
            data["planner"],
            data["seconds"],
        )

    def report(self, path: str | Path) -> None:
        """Write what there is to see of the plan to one HTML file, which works offline."""
        from remint.report import write_html

        write_html(path, [self])

    def save(self, path: str | Path) -> None:
        """Write the plan to a JSON file."""
        Path(path).write_text(json.dumps(self.to_json()))

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan from a JSON file."""
        return cls.from_json(json.loads(Path(path).read_text()))


def verify(graph: Graph, plan: Plan, budget: int | float | str | None = None) -> None:
    """Replay `plan` on `graph` and raise unless it is right and, where one is given, inside the budget.

    Checked: every op runs, once if it must not run twice; every read finds its value; every freed value is
    resident and no constant; the outputs are resident at the end; the peak, counted at each op before
    anything is freed, and the cost are what the plan says.
    """
    cost, peak = _replay(graph, plan.steps)
    if not math.isclose(cost, plan.cost, rel_tol=1e-9, abs_tol=1e-15):
        raise ValueError(f"the plan says it costs {plan.cost!r} s, its steps cost {cost!r} s")
    if peak != plan.peak_bytes:
        raise ValueError(f"the plan says its peak is {plan.peak_bytes} B, its steps peak at {peak} B")
    if plan.bound > cost * (1 + 1e-9):
        raise ValueError(f"the plan's bound of {plan.bound!r} s is above its cost of {cost!r} s")
    if budget is not None:
        budget_bytes = parse_budget(budget, peak_bytes=graph.peak_bytes)
        if peak > budget_bytes:
            raise BudgetError(
                f"the plan peaks at {format_bytes(peak)}, which is {peak - budget_bytes} B above the budget "
                f"of {format_bytes(budget_bytes)}: plan again for this budget",
                min_budget_bytes=graph.min_budget_bytes,
                known_budget_bytes=peak,
            )


def _replay(graph: Graph, steps: Sequence[Step]) -> tuple[float, int]:
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


def _steps(graph: Graph, sequence: Sequence[int]) -> tuple[Step, ...]:
    """Add the frees: a value goes after its last read before it is made again, or before the end."""
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
