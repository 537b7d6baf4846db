"""Writes a training step as a trace: the forward ops are given one by one, the backward ops follow.

So the generators get the lifetimes that training has. As in an eager framework, an activation lives until the
program has dropped it and the last backward op that needs it has run, a gradient until it was used, and the
gradients of the weights to the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from remint.trace.builder import TraceBuilder
from remint.trace.events import Call, Constant, Mark, Materialize, Mutate, Pin, Release, View
from remint.trace.trace import Trace

# How gradients go back through an op: by an op of its own, as views of the gradient of its one output, or
# unchanged, when all its inputs get that same gradient (addition).
Backward = Literal["call", "view", "share"]


@dataclass(frozen=True)
class _Node:
    """What it takes to go back through one op."""

    name: str
    backward: Backward
    inputs: tuple[int, ...]  # those that need gradients
    saved: tuple[int, ...]
    outputs: tuple[int, ...]
    seconds: float


class TrainingStepWriter:
    """A step being written. Tensors are numbers, as in `TraceBuilder`; the program drops what it used up.

    `seconds_per_byte` is the cost of element-wise ops, which is what an op costs unless it is said.
    """

    def __init__(self, *, seconds_per_byte: float) -> None:
        self.seconds_per_byte = seconds_per_byte
        self.nbytes: list[int] = []  # per tensor: the bytes it shows, for views too
        self._builder = TraceBuilder()
        self._roots: list[int] = []  # per tensor: the first one in its storage
        self._references: Counter[int] = Counter()  # per tensor: the program's, the tape's and gradients'
        self._live: Counter[int] = Counter()  # per storage: tensors with references
        self._needs_gradient: set[int] = set()
        self._nodes: list[_Node] = []
        self._gradients: dict[int, int] = {}

    def input(self, nbytes: int, name: str = "input") -> int:
        """Add a constant that gets no gradient."""
        return self._new(self._builder.constant(nbytes, name), nbytes)

    def weight(self, nbytes: int) -> int:
        """Add a constant that gets a gradient."""
        weight = self.input(nbytes, "weight")
        self._needs_gradient.add(weight)
        return weight

    def op(
        self,
        name: str,
        args: Sequence[int],
        nbytes: Sequence[int],
        seconds: float | None = None,
        *,
        saves: Sequence[int] = (),
        saves_outputs: Sequence[int] = (),
        backward: Backward = "call",
        backward_seconds: float | None = None,
    ) -> tuple[int, ...]:
        """Add an op. Its backward op reads the tensors `saves` and the outputs numbered `saves_outputs`."""
        seconds = self._cheap(nbytes) if seconds is None else seconds
        outputs = self._builder.call(name, args, nbytes, seconds)
        for output, size in zip(outputs, nbytes, strict=True):
            self._new(output, size)
        saved = (*saves, *(outputs[index] for index in saves_outputs))
        if backward_seconds is None:
            backward_seconds = seconds
        self._record(name, args, outputs, saved, backward, backward_seconds)
        return outputs

    def inplace(self, name: str, args: Sequence[int], *, backward: Backward = "call") -> int:
        """Add an element-wise op that writes its first argument in place, and drop what that was before.

        Its backward op, if it has one, reads what was written.
        """
        seconds = self._cheap([self.nbytes[args[0]]])
        (output,) = self._builder.mutate(name, args, [0], seconds)
        self._new(output, self.nbytes[args[0]])
        self._record(name, args, (output,), (output,) if backward == "call" else (), backward, seconds)
        self.drop(args[0])
        return output

    def view(self, name: str, arg: int, *, nbytes: int | None = None) -> int:
        """Add a view that shows `nbytes` of `arg`, by default all."""
        output = self._builder.view(name, arg)
        self._new(output, self.nbytes[arg] if nbytes is None else nbytes, self._roots[arg])
        self._record(name, [arg], (output,), (), "view", 0.0)
        return output

    def chunk(self, arg: int, count: int) -> tuple[int, ...]:
        """Add an op that makes `count` views of equal parts of `arg`; going back joins their gradients."""
        outputs = self._builder.call("chunk", [arg], [0] * count, 0.0, aliases=[0] * count)
        for output in outputs:
            self._new(output, self.nbytes[arg] // count, self._roots[arg])
        self._record("chunk", [arg], outputs, (), "call", self._cheap([self.nbytes[arg]]))
        return outputs

    def drop(self, *tensors: int) -> None:
        """Let go of one reference to each of `tensors`; they are released when nothing else needs them."""
        for tensor in tensors:
            self._references[tensor] -= 1
            if self._references[tensor] == 0:
                self._live[self._roots[tensor]] -= 1
                self._builder.release(tensor)

    def can_write(self, tensor: int) -> bool:
        """Whether nobody but its one holder would notice that `tensor` is written in place."""
        return self._references[tensor] == 1 and self._live[self._roots[tensor]] == 1

    def finish(self, loss: int) -> Trace:
        """Add the backward pass from `loss`, and return the trace, with all constants at its start."""
        self._builder.mark("backward")
        self._gradients[loss] = self._call("ones_like", [], [self.nbytes[loss]], 0.0)[0]
        while self._nodes:
            self._go_back(self._nodes.pop())
        return _constants_first(self._builder.build())

    def _go_back(self, node: _Node) -> None:
        gradients = [self._gradients.pop(output) for output in node.outputs if output in self._gradients]
        if gradients:
            sizes = [self.nbytes[tensor] for tensor in node.inputs]
            name = f"{node.name.rstrip('_')}_backward"
            if node.backward == "share":
                results = gradients * len(node.inputs)
                self._references.update(results)
            elif node.backward == "view":
                results = list(self._builder.call(name, gradients, [0] * len(sizes), 0.0, aliases=[0] * len(sizes)))
                for result, size in zip(results, sizes, strict=True):
                    self._new(result, size, self._roots[gradients[0]])
            else:
                results = self._call(name, [*gradients, *node.saved], sizes, node.seconds)
        self.drop(*node.saved)
        self.drop(*gradients)
        if gradients:
            for tensor, gradient in zip(node.inputs, results, strict=True):
                self._accumulate(tensor, gradient)

    def _accumulate(self, tensor: int, gradient: int) -> None:
        so_far = self._gradients.get(tensor)
        if so_far is None:
            self._gradients[tensor] = gradient
            return
        nbytes = self.nbytes[tensor]
        if self.can_write(so_far):
            (total,) = self._builder.mutate("add_", [so_far, gradient], [0], self._cheap([nbytes]))
            self._new(total, nbytes)
        else:
            (total,) = self._call("add", [so_far, gradient], [nbytes], self._cheap([nbytes]))
        self._gradients[tensor] = total
        self.drop(so_far, gradient)

    def _call(self, name: str, args: Sequence[int], nbytes: Sequence[int], seconds: float) -> list[int]:
        outputs = self._builder.call(name, args, nbytes, seconds)
        return [self._new(output, size) for output, size in zip(outputs, nbytes, strict=True)]

    def _new(self, tensor: int, nbytes: int, root: int | None = None) -> int:
        self.nbytes.append(nbytes)
        self._roots.append(tensor if root is None else root)
        self._references[tensor] = 1
        self._live[self._roots[tensor]] += 1
        return tensor

    def _record(
        self,
        name: str,
        args: Sequence[int],
        outputs: tuple[int, ...],
        saved: tuple[int, ...],
        backward: Backward,
        seconds: float,
    ) -> None:
        inputs = tuple(tensor for tensor in dict.fromkeys(args) if tensor in self._needs_gradient)
        if inputs:
            self._needs_gradient.update(outputs)
            self._nodes.append(_Node(name, backward, inputs, saved, outputs, seconds))
            self._references.update(saved)

    def _cheap(self, nbytes: Sequence[int]) -> float:
        return sum(nbytes) * self.seconds_per_byte


def _constants_first(trace: Trace) -> Trace:
    """Return `trace` with its constants moved to the start, as in a program that makes its model first."""
    builder = TraceBuilder()
    numbers: dict[int, int] = {}  # of tensors: before and after
    for event in trace.events():
        if isinstance(event, Constant):
            numbers[event.output] = builder.constant(event.nbytes, event.name)
    for event in trace.events():
        match event:
            case Constant():
                continue
            case Mark():
                builder.mark(event.name)
                continue
            case Release():
                builder.release(numbers[event.tensor])
                continue
            case Mutate():
                args = [numbers[tensor] for tensor in event.args]
                outputs = builder.mutate(event.name, args, event.mutated, event.seconds)
            case Call() | View():
                args = [numbers[tensor] for tensor in event.args]
                nbytes = event.nbytes if isinstance(event, Call) else [0] * len(event.outputs)
                outputs = builder.call(event.name, args, nbytes, event.seconds, aliases=event.aliases)
            case Pin() | Materialize():
                raise AssertionError("only recorded programs have these")
        numbers.update(zip(event.outputs, outputs, strict=True))
    return builder.build()
