"""Ops that draw random numbers, run again with the same bits.

The state of the generator before an op is a small tensor. It is taken where the op first runs, is saved like any
value, and is put back around each further run, so that the generator itself never notices.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

# What taking a state costs: a copy of a few kilobytes.
SECONDS = 5e-6


def draws(node: fx.Node) -> bool:
    """Whether a node draws from the generator of its device."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def take(device: torch.device) -> torch.Tensor:
    """Return the state of the generator of `device`."""
    return _generator(device).get_state()


def replay(state: torch.Tensor, target: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an op as it ran when `state` was taken, and leave the generator as it is now."""
    generator = _generator(_device(args, kwargs))
    now = generator.get_state()
    generator.set_state(state)
    try:
        return target(*args, **kwargs)
    finally:
        generator.set_state(now)


def device_of(node: fx.Node) -> torch.device:
    """The device whose generator a node draws from."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    return _device(args, kwargs)


def _device(args: Any, kwargs: Any) -> torch.device:
    for arg in args:
        if isinstance(arg, torch.Tensor):
            return arg.device
    device = kwargs.get("device")
    return torch.device("cpu") if device is None else torch.device(device)


def _generator(device: torch.device) -> torch.Generator:
    if device.type == "cpu":
        return torch.default_generator
    generators = torch.get_device_module(device).default_generators
    generator: torch.Generator = generators[device.index or 0]
    return generator
