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
from remint.graph.steps import Compute, Fetch, Free, Offload, Step, replay, with_consumed, with_frees
from remint.graph.tier import Tier
from remint.notebook import as_html
from remint.units import format_bytes, format_seconds

VERSION, VERSION_WITH_TIER = 1, 2

SCHEDULE_CLASS = (
    "ops first run in the graph's order; what is rematerialized between the first runs of two neighbouring "
    "ops runs in the graph's order, each op at most once"
)


@dataclass(frozen=True)
class Plan:
    """A schedule for a graph. `bound` is proven: no schedule of `SCHEDULE_CLASS` costs less.

    With a `tier`, the cost is the time of the step, in which ops wait for transfers, and no schedule with that tier
    costs less than the bound.
    """

    graph: Graph
    steps: tuple[Step, ...]
    cost: float
    peak_bytes: int
    bound: float
    planner: str = ""
    seconds: float = 0.0
    tier: Tier | None = None

    @classmethod
    def from_steps(
        cls,
        graph: Graph,
        steps: Sequence[Step],
        *,
        tier: Tier | None = None,
        bound: float | None = None,
        planner: str = "",
        seconds: float = 0.0,
    ) -> Plan:
        """Make a plan of all its steps, which may move values to a tier and back."""
        played = replay(graph, steps, tier)
        bound = graph.cost if bound is None else max(graph.cost, bound)
        return cls(graph, tuple(steps), played.cost, played.peak, min(bound, played.cost), planner, seconds, tier)

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
        return cls.from_steps(graph, steps, bound=bound, planner=planner, seconds=seconds)

    @property
    def overhead(self) -> float:
        """Time spent on rematerialization and on waiting for a tier, relative to running every op once."""
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

    @cached_property
    def fetched_bytes(self) -> int:
        """Bytes that come back from the tier."""
        return sum(self.graph.nbytes(step.value) for step in self.steps if isinstance(step, Fetch))

    @cached_property
    def offloaded_bytes(self) -> int:
        """Bytes that are copied to the tier."""
        return sum(self.graph.nbytes(step.value) for step in self.steps if isinstance(step, Offload))

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
        if self.offloaded_bytes:
            computed = math.fsum(graph.ops[op].cost for op in self.sequence)
            lines.insert(
                2,
                f"{format_bytes(self.offloaded_bytes)} go to the tier, {format_bytes(self.fetched_bytes)} come back; "
                f"ops and frees wait {format_seconds(max(0.0, self.cost - computed))} for them",
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
        """Return the plan as plain data, with its graph: a number runs an op, a name frees a value.

        With a tier, a pair is a word, `offload` or `fetch`, and a name.
        """
        tier = {} if self.tier is None else {"tier": self.tier.to_json()}
        return {
            "format": "remint.plan",
            "version": VERSION if self.tier is None else VERSION_WITH_TIER,
            **tier,
            "planner": self.planner,
            "seconds": self.seconds,
            "cost": self.cost,
            "peak_bytes": self.peak_bytes,
            "bound": self.bound,
            "steps": [_step_data(step) for step in self.steps],
            "graph": self.graph.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Make a plan of what `to_json` returned."""
        tier = data.get("tier")
        check_format(data, "remint.plan", VERSION if tier is None else VERSION_WITH_TIER)
        steps = tuple(map(_step_of, data["steps"]))
        return cls(
            Graph.from_json(data["graph"]),
            steps,
            data["cost"],
            data["peak_bytes"],
            data["bound"],
            data["planner"],
            data["seconds"],
            None if tier is None else Tier.from_json(tier),
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


def _step_data(step: Step) -> int | str | list[str]:
    if isinstance(step, Compute):
        return step.op
    if isinstance(step, Free):
        return step.value
    return ["offload" if isinstance(step, Offload) else "fetch", step.value]


def _step_of(data: int | str | Sequence[str]) -> Step:
    if isinstance(data, int):
        return Compute(data)
    if isinstance(data, str):
        return Free(data)
    word, value = data
    if word not in ("offload", "fetch"):
        raise ValueError(f"a step {word!r} is not known: write the plan again with this remint")
    return Offload(value) if word == "offload" else Fetch(value)
