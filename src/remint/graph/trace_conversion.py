"""Traces to graphs and back: a trace is a stream of calls on tensors, a graph is ops on storages."""

from __future__ import annotations

from typing import Literal

from remint.graph.graph import Graph, Op
from remint.graph.step_model import scratch_bytes, step_model
from remint.trace import Trace, TraceBuilder
from remint.trace.events import Call, Constant, Mutate, View


def graph_from_trace(trace: Trace, *, inplace: Literal["ghost", "copy"], alignment: int) -> Graph:
    """Return the graph of a trace, as `Graph.from_trace` says."""
    if inplace == "ghost":
        return step_model(trace, alignment=alignment).graph
    if alignment != 1:
        raise ValueError("in-place ops make copies in ideal memory, which has no alignment: leave it out")
    return _graph_with_copies(trace)


def _graph_with_copies(trace: Trace) -> Graph:
    """Return the graph of a trace as DTR's reference runs it: an op in place makes a fresh value.

    A view that costs something is an op that makes a value of no bytes. Releases do not matter: a plan frees by itself.
    """
    constants: dict[str, int] = {}
    ops: list[Op] = []
    storage: dict[int, str] = {}  # per tensor, the value or constant that holds its bytes
    beside: dict[int, tuple[str, ...]] = {}  # per tensor, the views of no bytes it went through
    taken: dict[str, int] = {}

    def unique(name: str) -> str:
        taken[name] = taken.get(name, 0) + 1
        return name if taken[name] == 1 else f"{name}#{taken[name]}"

    for event in trace.events():
        if isinstance(event, Constant):
            name = f"{unique(event.name)}"
            storage[event.output] = name
            constants[name] = 0 if event.where == "elsewhere" else event.nbytes
        elif isinstance(event, Call | View | Mutate):
            reads = dict.fromkeys(v for t in event.args for v in (storage[t], *beside.get(t, ())))
            name = unique(event.name)
            outputs: dict[str, int] = {}
            for place, tensor in enumerate(event.outputs):
                alias = event.aliases[place] if isinstance(event, Call | View) else -1
                if alias >= 0:
                    source = event.args[alias]
                    storage[tensor] = storage[source]
                    beside[tensor] = beside.get(source, ())
                    if event.seconds > 0:
                        outputs[f"{name}.{place}"] = 0
                        beside[tensor] = (*beside[tensor], f"{name}.{place}")
                else:
                    storage[tensor] = f"{name}.{place}"
                    outputs[f"{name}.{place}"] = 0 if isinstance(event, View) else event.nbytes[place]
            scratch = scratch_bytes(event, alignment=1)
            if scratch:
                outputs[f"{name}.workspace"] = scratch
            if outputs or event.seconds > 0:
                ops.append(Op(name, event.seconds, tuple(reads), outputs, True, event.source or ""))
    held = dict.fromkeys(storage[int(t)] for t in trace.held)
    return Graph(tuple(ops), constants, tuple(held))


def trace_from_graph(graph: Graph) -> tuple[Trace, dict[int, int]]:
    """Return a trace that runs the graph's ops in order and releases values after their last use.

    The second part says which op makes each tensor of the trace.
    """
    builder = TraceBuilder()
    tensor = {name: builder.constant(nbytes, name) for name, nbytes in graph.constants.items()}
    last = {value: index for index, op in enumerate(graph.ops) for value in (*op.outputs, *op.inputs)}
    maker: dict[int, int] = {}
    kept = set(graph.outputs) | set(graph.constants)
    backward = False
    for index, op in enumerate(graph.ops):
        # So `capture` names what autograd ran.
        if not backward and op.source.startswith("backward of "):
            backward = True
            builder.mark("backward")
        sizes = list(op.outputs.values()) or [0]
        made = builder.call(op.name, [tensor[v] for v in op.inputs], sizes, op.cost, source=op.source or None)
        maker.update((t, index) for t in made)
        tensor.update(zip(op.outputs, made, strict=False))
        for value in dict.fromkeys((*op.inputs, *op.outputs)):
            if last[value] == index and value not in kept:
                builder.release(tensor[value])
        if not op.outputs:
            builder.release(made[0])
    return builder.build(), maker
