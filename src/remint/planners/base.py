"""The contract of a planner: a function from a `Task` to an `Outcome`.

A planner returns the ops to run, in order; when each value is freed follows from that. It raises `Infeasible`
if it finds nothing inside the budget, with the schedule of least peak it met.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from remint._core import SearchProblem
from remint.graph import Graph


@dataclass(frozen=True)
class Problem:
    """A graph in numbers. Values are numbered in the order in which they are made; constants are left out."""

    graph: Graph

    @cached_property
    def values(self) -> tuple[str, ...]:
        """The names of the values."""
        return tuple(value for op in self.graph.ops for value in op.outputs)

    @cached_property
    def number(self) -> dict[str, int]:
        """The number of each value."""
        return {value: v for v, value in enumerate(self.values)}

    @cached_property
    def cost(self) -> list[float]:
        """Seconds per op."""
        return [float(op.cost) for op in self.graph.ops]

    @cached_property
    def inputs(self) -> list[list[int]]:
        """Per op, the values it reads, each once."""
        return [[self.number[v] for v in dict.fromkeys(op.inputs) if v in self.number] for op in self.graph.ops]

    @cached_property
    def outputs(self) -> list[list[int]]:
        """Per op, the values it makes."""
        return [[self.number[v] for v in op.outputs] for op in self.graph.ops]

    @cached_property
    def nbytes(self) -> list[int]:
        """Bytes per value."""
        return [nbytes for op in self.graph.ops for nbytes in op.outputs.values()]

    @cached_property
    def maker(self) -> list[int]:
        """The op that makes each value."""
        return [i for i, op in enumerate(self.graph.ops) for _ in op.outputs]

    @cached_property
    def users(self) -> list[list[int]]:
        """Per value, the ops that read it; the number of ops stands for the end of the step."""
        users: list[list[int]] = [[] for _ in self.values]
        for i, inputs in enumerate(self.inputs):
            for v in inputs:
                users[v].append(i)
        for v in self.results:
            users[v].append(len(self.graph.ops))
        return users

    @cached_property
    def results(self) -> list[int]:
        """The values that must be resident at the end."""
        return [self.number[v] for v in self.graph.outputs if v in self.number]

    @cached_property
    def turn(self) -> int:
        """Where the forward phase ends: the op before which most bytes wait for a later op.

        A graph does not say which ops are the backward phase. What waits, graph outputs apart, is largest
        where it begins.
        """
        n = len(self.graph.ops)
        change = [0] * (n + 2)
        results = set(self.results)
        for v, users in enumerate(self.users):
            if users and v not in results:
                change[self.maker[v] + 1] += self.nbytes[v]
                change[users[-1] + 1] -= self.nbytes[v]
        best, at, now = -1, 0, 0
        for t in range(n + 1):
            now += change[t]
            if now > best:
                best, at = now, t
        return at

    @cached_property
    def native(self) -> SearchProblem:
        """The same numbers for the native search."""
        return SearchProblem(
            cost=self.cost,
            again=[op.rematerializable for op in self.graph.ops],
            inputs=self.inputs,
            outputs=self.outputs,
            bytes=[float(b) for b in self.nbytes],
            results=self.results,
            constant_bytes=float(self.graph.constant_bytes),
        )


@dataclass(frozen=True)
class Progress:
    """What a planner knows so far."""

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
    """What a planner is asked: a graph, a budget, the time it has, a seed, whom to tell."""

    problem: Problem
    budget: int
    deadline: float
    seed: int = 0
    started: float = field(default_factory=time.monotonic)
    listener: Callable[[Progress], None] | None = None
    hint: tuple[int, ...] | None = None

    @property
    def graph(self) -> Graph:
        """The graph to plan."""
        return self.problem.graph

    def left(self) -> float:
        """Seconds until the deadline, 0 or more."""
        return max(0.0, self.deadline - time.monotonic())

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
