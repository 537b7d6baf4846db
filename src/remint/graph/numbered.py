"""NumberedGraph: a graph with values as numbers, for planners and native code."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from remint._core import LeastMemory, SearchProblem
from remint.graph.graph import Graph

# How far the bound on memory looks back: sets of values per op, and ops.
SETS, OPS = 400, 64


@dataclass(frozen=True)
class NumberedGraph:
    """A graph with values as numbers, in the order in which they are made. Constants are left out."""

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

        A graph does not say which ops are the backward phase. Most bytes wait, graph outputs apart, where it begins.
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
            consumes=[
                [(self.number[source], self.number[value]) for value, source in op.consumes.items()]
                for op in self.graph.ops
            ],
            until=list(self.graph.last_stages),
        )

    @cached_property
    def least_memory(self) -> LeastMemory:
        """The native search for schedules of little memory."""
        return LeastMemory(self.native)

    @classmethod
    def of(cls, graph: Graph) -> NumberedGraph:
        """Return the numbered graph of a graph; it is made once."""
        if "_numbered" not in graph.__dict__:
            graph.__dict__["_numbered"] = cls(graph)
        numbered: NumberedGraph = graph.__dict__["_numbered"]
        return numbered


def least_budget(graph: Graph) -> int:
    """Return a proven lower bound on the bytes of any schedule, by looking back from the ops that hold most."""
    return int(NumberedGraph.of(graph.relaxed).least_memory.bound(SETS, OPS))
