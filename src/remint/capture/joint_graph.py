"""The joint forward and backward graph of a training step, as AOTAutograd traces it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_export_module
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

# Files in these folders are not the user's.
_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), "<frozen ")  # the last: runpy
_CALL = torch.nn.Module._call_impl.__code__  # the `self` of its frames is the module that is called


@dataclass(frozen=True)
class Joint:
    """The traced graph and the tensors it takes, in order, with their names."""

    module: fx.GraphModule
    inputs: tuple[torch.Tensor, ...]
    input_names: tuple[str, ...]
    sources: Mapping[str, str]  # per node, the module and the user's line: "GPT.blocks.3.mlp at net.py:12"


def trace_joint(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Callable[[Any], Any] | None
) -> Joint:
    """Trace one step of `model`, functionalized, with the gradients of all parameters as outputs."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = tuple(leaves[i].detach() for i in places)

    lines = _Lines(model)

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor]:
            filled = list(leaves)
            for place, tensor in zip(places, inputs, strict=True):
                filled[place] = tensor
            full_args, full_kwargs = pytree.tree_unflatten(filled, spec)
            lines.spans.clear()
            with lines:
                return (_scalar(self.model(*full_args, **full_kwargs), loss),)

    step = Step()
    with fx.traceback.preserve_node_meta():
        traced, signature = aot_export_module(step, tensors, trace_joint=True, output_loss_index=0)
    module = cast(fx.GraphModule, traced)
    state = {**dict(step.named_parameters(remove_duplicate=False)), **dict(step.named_buffers())}
    names = [*signature.parameters, *signature.buffers]
    return Joint(
        module,
        (*(state[name] for name in names), *tensors),
        (*(name.removeprefix("model.") for name in names), *(f"input{i}" for i in range(len(tensors)))),
        _sources(module, lines.spans),
    )


class _Lines(TorchFunctionMode):
    """Notes which module and line of the user called for which autograd nodes, by their sequence numbers."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        root = type(model).__name__
        self._paths = {id(part): f"{root}.{name}" if name else root for name, part in model.named_modules()}
        self.spans: list[tuple[int, int, str]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = torch._C._autograd._get_sequence_nr()
        result = func(*args, **(kwargs or {}))
        self.spans.append((first, torch._C._autograd._get_sequence_nr(), self._place(sys._getframe(1))))
        return result

    def _place(self, frame: FrameType) -> str:
        module = line = None
        at: FrameType | None = frame
        while at is not None and not (module and line):
            if line is None and not at.f_code.co_filename.startswith(_LIBRARIES):
                line = f"{Path(at.f_code.co_filename).name}:{at.f_lineno}"
            if module is None and at.f_code is _CALL:
                module = self._paths.get(id(at.f_locals["self"]))
            at = at.f_back
        return f"{module} at {line}" if module and line else module or line or ""


def _sources(module: fx.GraphModule, spans: list[tuple[int, int, str]]) -> dict[str, str]:
    """Return the line of each node: a forward node's own, for a backward node that of what it goes back over.

    AOTAutograd traces twice: the sequence numbers of the graph are those of the first trace, shifted.
    """
    calls = [node for node in module.graph.nodes if node.op == "call_function" and "seq_nr" in node.meta]
    if not spans or not calls:
        return {}
    shift = min(node.meta["seq_nr"] for node in calls) - spans[0][0]
    lines = {number + shift: line for first, end, line in spans for number in range(first, end)}
    last = max(lines, default=-1)
    sources: dict[str, str] = {}
    for node in calls:
        if node.meta["seq_nr"] <= last:
            sources[node.name] = lines.get(node.meta["seq_nr"], "")
            continue
        read = [n for n in node.all_input_nodes if sources.get(n.name)]
        forward = [n for n in read if n.meta["seq_nr"] <= last]
        if forward:
            sources[node.name] = f"backward of {sources[forward[-1].name]}"
        elif read:
            sources[node.name] = sources[read[0].name]
    return sources


def _scalar(output: Any, loss: Callable[[Any], Any] | None) -> torch.Tensor:
    result = loss(output) if loss is not None else getattr(output, "loss", output)
    if loss is None and isinstance(result, tuple | list) and result:
        result = result[0]
    if not isinstance(result, torch.Tensor) or result.numel() != 1:
        found = f"shape {tuple(result.shape)}" if isinstance(result, torch.Tensor) else type(result).__name__
        raise ValueError(
            f"a step needs a scalar loss, but the model returns {found}: pass loss=, a function of the "
            "model's output that returns a scalar"
        )
    return result.reshape(())
