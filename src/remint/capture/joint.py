"""The joint forward and backward graph of a training step, as AOTAutograd traces it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_export_module
from torch.utils import _pytree as pytree

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


@dataclass(frozen=True)
class Joint:
    """The traced graph and the tensors it takes, in order, with their names."""

    module: fx.GraphModule
    inputs: tuple[torch.Tensor, ...]
    input_names: tuple[str, ...]


def trace_joint(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Callable[[Any], Any] | None
) -> Joint:
    """Trace one step of `model`, functionalized, with the gradients of all parameters as outputs."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = tuple(leaves[i].detach() for i in places)

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor]:
            filled = list(leaves)
            for place, tensor in zip(places, inputs, strict=True):
                filled[place] = tensor
            full_args, full_kwargs = pytree.tree_unflatten(filled, spec)
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
    )


def source_of(node: fx.Node) -> str:
    """Return the user's line that asked for `node`, or the module it belongs to."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [
        f
        for f in frames
        if "/torch/" not in f[0] and not f[0].startswith("<") and "capture/joint" not in f[0]
    ]
    modules = node.meta.get("nn_module_stack") or {}
    path = ""
    for entry in modules.values():
        path = str(entry[0]) if isinstance(entry, tuple) else str(entry)
    path = re.sub(r"^.*?model\.?", "", path, count=1) if "model" in path else path
    line = f"{own[-1][0]}:{own[-1][1]}" if own else ""
    return " ".join(part for part in (path, line) if part)


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
