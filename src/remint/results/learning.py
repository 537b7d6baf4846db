"""What a budget learned of the steps of a program, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from remint.units import format_bytes


@dataclass(frozen=True)
class Phase:
    """Steps of one kind, all together."""

    num_steps: int
    computed_seconds: float
    """The time of the program's own ops."""
    rematerialized_seconds: float
    search_seconds: float
    """Real time spent on freeing up space."""

    @property
    def slowdown(self) -> float:
        """The time with rematerialization over the time without."""
        return 1 + self.rematerialized_seconds / self.computed_seconds if self.computed_seconds else 1.0


@dataclass(frozen=True)
class StepOutcome:
    """What one step takes."""

    peak_bytes: int
    num_rematerializations: int
    computed_seconds: float
    rematerialized_seconds: float
    cpu_seconds: float = 0.0
    """CPU time of the thread that runs the steps: kernels, the program's own code, and bookkeeping. Predicted is the
    last two as in the step before. 0.0 where it is not known: in the first steps, and on accelerators."""

    @property
    def slowdown(self) -> float:
        """The time with rematerialization over the time without."""
        return 1 + self.rematerialized_seconds / self.computed_seconds if self.computed_seconds else 1.0


@dataclass(frozen=True)
class Learning:
    """The steps of a run: those that the policy decided on, those that followed a known step, those of a plan."""

    greedy: Phase
    """Steps in which the policy knew only the past. Steps without any eviction are not counted."""
    learned: Phase
    """Steps that were known from before. What departs from a known step counts here up to that point."""
    planned: Phase
    """Steps that followed a plan that another process had found. Departures as in `learned`."""
    num_departures: int
    """Times that the program did something else than the step that was expected."""
    last_departure: str
    """The op at which the program departed last, and what it did; empty if it never did."""
    num_known_steps: int
    known_bytes: int
    """Memory that the known steps take, outside of the budget."""
    num_plans: int = 0
    """Plans of the other process that took the place of what was followed before."""
    is_planning: bool = False
    """Whether the other process searches for a better plan now."""
    predicted: StepOutcome | None = None
    """What was predicted for the step that was followed last to its end; None if there was none."""
    measured: StepOutcome | None = None
    """What that step took."""
    num_asleep_steps: int = 0
    """Steps whose ops were not watched, because memory was plentiful."""
    num_wakes: int = 0
    """Times that the budget started to watch again."""
    last_wake: str = ""
    """Why it did so last; empty if it never did."""
    tier_use: str = ""
    """What the tier is used for since a step was simulated with each use: see `Offload.use`. Empty: none was."""

    @property
    def saw_steps(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self.phases or self.num_known_steps or self.num_asleep_steps or self.num_wakes)

    @property
    def phases(self) -> dict[str, Phase]:
        """The kinds of which there were steps."""
        named = {"greedy": self.greedy, "learned": self.learned, "planned": self.planned}
        return {name: phase for name, phase in named.items() if phase.num_steps}

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Learning:
        """Make it of what `to_json` returned."""
        nested: dict[str, Any] = {name: Phase(**data[name]) for name in ("greedy", "learned", "planned")}
        for name in ("predicted", "measured"):
            nested[name] = None if data[name] is None else StepOutcome(**data[name])
        return cls(**{**data, **nested})

    def __str__(self) -> str:
        phases = [f"{phase.num_steps:,} {name} (slowdown {phase.slowdown:.3f})" for name, phase in self.phases.items()]
        text = ", ".join(phases) or "none under pressure"
        if self.is_planning:
            text += "; a better plan is searched for"
        if self.num_departures:
            text += f"; {self.num_departures:,} departed, last at {self.last_departure}"
        if self.num_known_steps:
            text += f"; {self.num_known_steps} known in {format_bytes(self.known_bytes)}"
        if self.tier_use:
            text += f"; the tier's use: {self.tier_use}"
        if self.num_asleep_steps:
            text += f"; {self.num_asleep_steps:,} asleep"
        if self.num_wakes:
            text += f"; woke up {self.num_wakes:,} times, last for {self.last_wake}"
        return text
