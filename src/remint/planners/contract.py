"""The contract of a planner: a function from a `Task` to an `Outcome`.

A planner returns the ops to run, in order; when each value is freed follows from that. It raises `Infeasible`
if it finds nothing inside the budget, with the schedule of least peak it met.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from remint.graph import Graph
from remint.graph.numbered import NumberedGraph
from remint.planners.cpu_clock import cpu_seconds


@dataclass(frozen=True)
class Progress:
    """What a planner has found so far."""

    planner: str
    seconds: float
    cost: float | None
    bound: float
    base: float

    @property
    def gap(self) -> float | None:
        """How far the cost can be from the optimum."""
        if self.cost is None:
            return None
        return max(0.0, self.cost - self.bound) / self.bound if self.bound else 0.0


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a planner is asked: a graph, a budget, a deadline in CPU time, a seed, a listener for progress."""

    numbered: NumberedGraph
    budget: int
    deadline: float
    seed: int = 0
    started: float = field(default_factory=time.monotonic)
    listener: Callable[[Progress], None] | None = None
    hint: tuple[int, ...] | None = None

    @property
    def graph(self) -> Graph:
        """The graph to plan."""
        return self.numbered.graph

    @property
    def relaxed(self) -> Task:
        """The task of the relaxed graph: what is proven of that one holds for this one."""
        if self.graph.relaxed is self.graph:
            return self
        return replace(self, numbered=NumberedGraph.of(self.graph.relaxed))

    def left(self) -> float:
        """Seconds of CPU time until the deadline, 0 or more."""
        return max(0.0, self.deadline - cpu_seconds())

    def report(self, planner: str, cost: float | None, bound: float | None = None) -> None:
        """Tell the listener, if any."""
        if self.listener is not None:
            base = self.graph.cost
            self.listener(Progress(planner, time.monotonic() - self.started, cost, max(base, bound or 0.0), base))


@dataclass(frozen=True)
class Outcome:
    """The ops to run, in order, and a proven lower bound on the cost of any schedule of the class."""

    sequence: tuple[int, ...]
    bound: float = 0.0


class Infeasible(Exception):  # noqa: N818 - it says what is the case, and never leaves the package
    """No schedule inside the budget was found; `least` is the schedule of least peak that was met."""

    def __init__(self, reason: str, least: Sequence[int] = (), *, proven: bool = False) -> None:
        super().__init__(reason)
        self.least = tuple(least)
        self.proven = proven


Planner = Callable[[Task], Outcome]
