"""Conversions of modules whose weights are fake: `model.to(torch.bfloat16)`, `model.half()`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def converted_modules() -> Iterator[None]:
    """Convert modules by giving them new weights.

    PyTorch swaps the contents of the old and the new weight, which it refuses for fake tensors: the mode that made them
    refers to them.
    """
    # By the old tensor, which stays alive, so that its id is not used again. Weights that are tied stay so.
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def convert(tensor: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        if id(tensor) not in made:
            with torch.no_grad():
                new = function(tensor)
            if isinstance(tensor, nn.Parameter):
                new = nn.Parameter(new, tensor.requires_grad)
            made[id(tensor)] = (tensor, new)
        return made[id(tensor)][1]

    def apply(self: nn.Module, fn: Any, recurse: bool = True) -> nn.Module:
        if recurse:
            for child in self.children():
                child._apply(fn)  # type: ignore[no-untyped-call]
        for tensors in (self._parameters, self._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = convert(tensor, fn)  # type: ignore[assignment]
        return self

    of_torch = nn.Module._apply
    nn.Module._apply = apply  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module._apply = of_torch  # type: ignore[method-assign]
