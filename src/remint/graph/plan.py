"""Plan: which op runs when, and when each value is freed."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from remint.file_format import check_format
from remint.graph.graph import Graph
from remint.graph.steps import Compute, Free, Step, replay, with_consumed, with_frees
from remint.notebook import as_html
from remint.units import format_bytes, format_seconds

VERSION = 1

SCHEDULE_CLASS = (
    "ops first run in the graph's order; what is rematerialized between the first runs of two neighbouring "
    "ops runs in the graph's order, each op at most once"
)


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
        """Make a plan of the ops to run, in order; each value is freed as early as possible.

        Inputs that ops in place consumed are made again where the sequence reads them once more.
        """
        steps = with_frees(graph, with_consumed(graph, sequence))
        cost, peak = replay(graph, steps)
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
        """Return a text: how many ops run once, which are rematerialized, when, and what that costs."""
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

    def _repr_html_(self) -> str:
        whole = self.graph.peak_bytes
        fitted = f"Fits {format_bytes(whole)} into {format_bytes(self.peak_bytes)}; {self.overhead:.1%} slower"
        proof = "no plan is cheaper" if self.optimal else f"at most {self.gap:.1%} from the cheapest"
        times = Counter(step.op for step in self.steps if isinstance(step, Compute))
        again = sorted(times.items(), key=lambda item: -(item[1] - 1) * self.graph.ops[item[0]].cost)
        rows = [
            (self.graph.ops[op].name, count - 1, format_seconds((count - 1) * self.graph.ops[op].cost))
            for op, count in again[:5]
            if count > 1
        ]
        return as_html(f"{fitted}, {proof} ({self.planner}).", ["op", "runs again", "time"], rows)

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
        """Write a page about the plan: one HTML file, which works offline."""
        from remint.report import write_html

        write_html(path, [self])

    def save(self, path: str | Path) -> None:
        """Write the plan to a JSON file."""
        Path(path).write_text(json.dumps(self.to_json()))

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan from a JSON file."""
        return cls.from_json(json.loads(Path(path).read_text()))
