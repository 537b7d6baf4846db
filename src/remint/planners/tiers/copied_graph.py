"""A graph in which chosen values come back from a tier when they are dropped, for planners that know no tier.

The op that makes a chosen value makes two in its place: one without bytes, which is there from then on and stands for
the copy, and one that nobody reads, for the bytes while the op runs. Right after it comes an op, *the copy*, that reads
the former and makes the value. Running it again is a fetch. So whatever a planner decides about the value is a decision
about when it leaves and when it is fetched. What a copy costs is up to the caller: transfers run beside compute.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from remint.graph import Graph, Op
from remint.graph.numbered import NumberedGraph

_COPY, _BYTES = "\0copy of ", "\0bytes of "  # no value has such a name


@dataclass(frozen=True)
class CopiedGraph:
    """A graph with copies of some values, and what its ops stand for."""

    graph: Graph
    numbered: NumberedGraph  # of the graph with copies
    op: tuple[int, ...]  # per op of that graph, the op it is, or -1
    copied: tuple[str, ...]  # per op of that graph, the value it copies, or ""

    @classmethod
    def of(cls, graph: Graph, chosen: Set[str], price: float) -> CopiedGraph:
        """Return the graph in which `chosen` values come back for `price` seconds per byte."""
        ops: list[Op] = []
        op_of: list[int] = []
        copied: list[str] = []
        for index, op in enumerate(graph.ops):
            mine = [value for value in op.outputs if value in chosen]
            outputs = {value: nbytes for value, nbytes in op.outputs.items() if value not in chosen}
            consumes = {value: source for value, source in op.consumes.items() if value not in chosen}
            for value in mine:
                outputs |= {_COPY + value: 0, _BYTES + value: op.outputs[value]}
                if value in op.consumes:
                    consumes[_BYTES + value] = op.consumes[value]
            ops.append(Op(op.name, op.cost, op.inputs, outputs, op.rematerializable, "", consumes) if mine else op)
            op_of.append(index)
            copied.append("")
            for value in mine:
                nbytes = op.outputs[value]
                ops.append(Op(_COPY + value, price * nbytes, (_COPY + value,), {value: nbytes}))
                op_of.append(-1)
                copied.append(value)
        made = Graph(tuple(ops), graph.constants, graph.outputs)
        return cls(graph, NumberedGraph.of(made), tuple(op_of), tuple(copied))


def is_of_the_graph(value: str) -> bool:
    """Whether a value of the graph with copies is one of the graph itself."""
    return not value.startswith((_COPY, _BYTES))
