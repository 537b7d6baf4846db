"""Graph: what one training step computes, what it costs and how many bytes it makes.

Ops stand in execution order. Each makes one or more values; a value is identified by its name and never
changes. Constants (weights, inputs) are resident before, during and after the step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from remint.file_format import check_format

if TYPE_CHECKING:
    from remint.trace import Trace

VERSION = 1


@dataclass(frozen=True)
class Op:
    """One call: reads `inputs`, makes `outputs` (name → bytes) in `cost` seconds.

    An op in place *consumes* an input: `consumes` (output → input) names outputs that take over the bytes of an input.
    After the op that input is not resident. An op that needs it once more needs it to be made again.
    """

    name: str
    cost: float
    inputs: tuple[str, ...] = ()
    outputs: Mapping[str, int] = field(default_factory=dict)
    rematerializable: bool = True
    source: str = ""
    consumes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(self.inputs))
        object.__setattr__(self, "outputs", MappingProxyType(dict(self.outputs)))
        object.__setattr__(self, "consumes", MappingProxyType(dict(self.consumes)))
        if not (isinstance(self.cost, int | float) and math.isfinite(self.cost) and self.cost >= 0):
            raise ValueError(f"op {self.name!r}: a cost is a number of seconds, 0 or more, not {self.cost!r}")
        for value, nbytes in self.outputs.items():
            _check_bytes(f"op {self.name!r}: output {value!r}", nbytes)
        for value, source in self.consumes.items():
            if value not in self.outputs or source not in self.inputs:
                raise ValueError(
                    f"op {self.name!r}: {value!r} consumes {source!r}: name an output and an input of the op"
                )
        if len(set(self.consumes.values())) < len(self.consumes):
            raise ValueError(f"op {self.name!r}: an input is consumed twice: its bytes can go to one output only")

    def __hash__(self) -> int:
        return hash((self.name, self.cost, self.inputs, tuple(self.outputs.items()), self.rematerializable))

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            Op,
            (
                self.name,
                self.cost,
                self.inputs,
                dict(self.outputs),
                self.rematerializable,
                self.source,
                dict(self.consumes),
            ),
        )


@dataclass(frozen=True)
class Graph:
    """Ops in execution order, constants (always resident), outputs (must be resident at the end)."""

    ops: tuple[Op, ...]
    constants: Mapping[str, int] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "ops", tuple(self.ops))
        object.__setattr__(self, "constants", MappingProxyType(dict(self.constants)))
        object.__setattr__(self, "outputs", tuple(self.outputs))
        for value, nbytes in self.constants.items():
            _check_bytes(f"constant {value!r}", nbytes)
        makers: dict[str, int] = {}
        for index, op in enumerate(self.ops):
            for value in op.outputs:
                if value in makers:
                    raise ValueError(
                        f"value {value!r} is made twice, by op {self.ops[makers[value]].name!r} and by op "
                        f"{op.name!r}: every value needs a name of its own"
                    )
                if value in self.constants:
                    raise ValueError(f"value {value!r} of op {op.name!r} has the name of a constant: rename one")
                makers[value] = index
        for index, op in enumerate(self.ops):
            for value in op.inputs:
                if value in self.constants:
                    continue
                if value not in makers:
                    raise ValueError(f"op {op.name!r} reads {value!r}, which is neither a constant nor made by any op")
                if makers[value] >= index:
                    raise ValueError(
                        f"op {op.name!r} reads {value!r}, which op {self.ops[makers[value]].name!r} makes "
                        "only later: the ops form a cycle or are not in execution order"
                    )
        consumers: dict[str, int] = {}
        for index, op in enumerate(self.ops):
            for value in op.inputs:
                if value in consumers:
                    raise ValueError(
                        f"op {op.name!r} reads {value!r}, which op {self.ops[consumers[value]].name!r} has consumed: "
                        "read what became of it"
                    )
            for output, value in op.consumes.items():
                if value in self.constants:
                    raise ValueError(f"op {op.name!r} consumes the constant {value!r}: constants stay resident")
                if op.outputs[output] != self.ops[makers[value]].outputs[value]:
                    raise ValueError(f"op {op.name!r}: {output!r} consumes {value!r}, which has another size")
                consumers[value] = index
        for value in self.outputs:
            if value in consumers:
                raise ValueError(f"output {value!r} is consumed by op {self.ops[consumers[value]].name!r}")
            if value not in makers and value not in self.constants:
                raise ValueError(f"output {value!r} is neither a constant nor made by any op")
        if len(set(self.outputs)) < len(self.outputs):
            raise ValueError("an output is named twice: name each once")

    def __hash__(self) -> int:
        return hash((self.ops, tuple(self.constants.items()), self.outputs))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Graph, (self.ops, dict(self.constants), self.outputs))

    @cached_property
    def makers(self) -> Mapping[str, int]:
        """The index of the op that makes each value."""
        return MappingProxyType({value: i for i, op in enumerate(self.ops) for value in op.outputs})

    @cached_property
    def constant_bytes(self) -> int:
        """Bytes that are resident whatever the plan."""
        return sum(self.constants.values())

    @cached_property
    def cost(self) -> float:
        """Seconds of running every op once."""
        return math.fsum(op.cost for op in self.ops)

    @cached_property
    def peak_bytes(self) -> int:
        """Peak of running every op once and freeing each value after its last use."""
        last: dict[str, int] = {}
        for index, op in enumerate(self.ops):
            for value in op.outputs:
                last[value] = index
            for value in op.inputs:
                last[value] = index
        for value in (*self.outputs, *self.constants):
            last[value] = len(self.ops)
        freed = [0] * (len(self.ops) + 1)
        for op in self.ops:
            for value, nbytes in op.outputs.items():
                freed[last[value]] += nbytes
        peak = resident = self.constant_bytes
        for index, op in enumerate(self.ops):
            taken_over = sum(map(op.outputs.__getitem__, op.consumes))
            resident += sum(op.outputs.values())
            peak = max(peak, resident - taken_over)
            resident -= freed[index]
        return peak

    @cached_property
    def relaxed(self) -> Graph:
        """A graph without consumed inputs, which every schedule of this one fits into: they have no bytes there.

        What is proven of it holds for this graph. It is this graph itself if no op consumes anything.
        """
        consumed = {value for op in self.ops for value in op.consumes.values()}
        if not consumed:
            return self
        ops = (
            Op(
                op.name,
                op.cost,
                op.inputs,
                {value: 0 if value in consumed else nbytes for value, nbytes in op.outputs.items()},
                op.rematerializable,
                op.source,
            )
            for op in self.ops
        )
        return Graph(tuple(ops), self.constants, self.outputs)

    @cached_property
    def last_stages(self) -> tuple[int, ...]:
        """Per op, the last stage that may run it: the op whose first run takes away what it needs for good."""
        end = len(self.ops)
        consumers = {value: index for index, op in enumerate(self.ops) for value in op.consumes.values()}
        until: list[int] = []
        for index, op in enumerate(self.ops):
            last = end if op.rematerializable else index
            for value in op.inputs:
                if value in self.constants:
                    continue
                maker = self.makers[value]
                # What cannot be made again is there until it is consumed.
                stays = not self.ops[maker].rematerializable
                last = min(last, consumers.get(value, end) if stays else max(until[maker], index))
            until.append(last)
        return tuple(until)

    @cached_property
    def min_budget_bytes(self) -> int:
        """A lower bound: no schedule of the same ops, in any order, can do with less. It may take more.

        It is what making the inputs of some op takes.
        """
        from remint.graph.numbered import least_budget

        return least_budget(self)

    def nbytes(self, value: str) -> int:
        """The bytes of a value or constant."""
        if value in self.constants:
            return self.constants[value]
        return self.ops[self.makers[value]].outputs[value]

    def to_json(self) -> dict[str, Any]:
        """Return the graph as plain data."""
        ops: list[dict[str, Any]] = []
        for op in self.ops:
            item: dict[str, Any] = {
                "name": op.name,
                "cost": op.cost,
                "inputs": list(op.inputs),
                "outputs": dict(op.outputs),
            }
            if not op.rematerializable:
                item["rematerializable"] = False
            if op.source:
                item["source"] = op.source
            if op.consumes:
                item["consumes"] = dict(op.consumes)
            ops.append(item)
        return {
            "format": "remint.graph",
            "version": VERSION,
            "constants": dict(self.constants),
            "outputs": list(self.outputs),
            "ops": ops,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Graph:
        """Make a graph of what `to_json` returned."""
        check_format(data, "remint.graph", VERSION)
        ops = (
            Op(
                item["name"],
                item["cost"],
                tuple(item["inputs"]),
                item["outputs"],
                item.get("rematerializable", True),
                item.get("source", ""),
                item.get("consumes", {}),
            )
            for item in data["ops"]
        )
        return cls(tuple(ops), data["constants"], tuple(data["outputs"]))

    @classmethod
    def from_trace(cls, trace: Trace, *, inplace: Literal["copy", "ghost"] = "copy", alignment: int = 1) -> Graph:
        """Make a graph of a recorded or DTR trace.

        With `inplace="copy"` an op in place makes a fresh value, as in the simulator's ideal memory. With `"ghost"` it
        takes over the bytes that it writes, and the graph models what the runtime does, to the byte
        (src/remint/graph/step_model.py); `alignment` is that of its arena: 64 on the CPU.
        """
        from remint.graph.trace_conversion import graph_from_trace

        return graph_from_trace(trace, inplace=inplace, alignment=alignment)

    def save(self, path: str | Path) -> None:
        """Write the graph to a JSON file."""
        Path(path).write_text(json.dumps(self.to_json(), indent=1))

    @classmethod
    def load(cls, path: str | Path) -> Graph:
        """Read a graph from a JSON file."""
        return cls.from_json(json.loads(Path(path).read_text()))


def _check_bytes(what: str, nbytes: int) -> None:
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
        raise ValueError(f"{what}: a size is a whole number of bytes, 0 or more, not {nbytes!r}")
