"""The tensors that a program holds, by what they are for: weights, optimizer state, others."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from remint._core import CPU_ALIGNMENT
from remint.results.holders import Holder


def live_tensors() -> tuple[Holder, ...]:
    """Return the memory of all CPU tensors that the program holds, without gradients, which each step makes.

    Call it outside of any budget, between two steps.
    """
    objects = gc.get_objects()
    modules = [each for each in objects if issubclass(type(each), nn.Module)]
    optimizers = [each for each in objects if issubclass(type(each), torch.optim.Optimizer)]
    tensors = [each for each in objects if issubclass(type(each), torch.Tensor)]
    parameters = [each for each in tensors if issubclass(type(each), nn.Parameter)]
    trained = [weight for each in optimizers for group in each.param_groups for weight in group["params"]]
    gradients = _storages(each.grad for each in (*parameters, *trained) if each.grad is not None)
    seen = set(gradients)
    found: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for kind, group in (
        ("weights", (*parameters, *trained)),
        ("buffers", [buffer for each in modules for buffer in each.buffers()]),
        ("optimizer state", [value for each in optimizers for value in _tensors_in(each.state)]),
        ("other tensors", tensors),
    ):
        for storage, nbytes in _storages(group).items():
            if storage not in seen and nbytes:
                seen.add(storage)
                found[kind] += -(-nbytes // CPU_ALIGNMENT) * CPU_ALIGNMENT
                count[kind] += 1
    return tuple(Holder(kind, "", count[kind], nbytes) for kind, nbytes in found.most_common())


def _storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    found = {}
    for tensor in tensors:
        try:
            if tensor.device.type == "cpu" and tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                # A fake tensor says that it is on the CPU, and has no memory there.
                if storage.device.type == "cpu":
                    found[storage._cdata] = storage.nbytes()
        except Exception:
            # Subclasses may have no storage, or none that can be asked for.
            continue
    return found


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors_in(each)
