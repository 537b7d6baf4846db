"""From a PyTorch model to a Graph: trace a training step, collapse it to storages, find what ops cost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from remint.capture.costs import estimate, measure
from remint.capture.joint_graph import trace_joint
from remint.capture.storages import find_storages, to_graph
from remint.graph import Graph

__all__ = ["capture"]


def capture(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    loss: Callable[[Any], Any] | None = None,
    costs: str = "measure",
) -> Graph:
    """Return the Graph of one training step of `model`, forward and backward.

    `loss` makes a scalar of the model's output; without it the output, its `.loss` or its first item must be
    one. `costs` is "measure" (run each distinct op here a few times) or "estimate" (a roofline; nothing is
    run).
    """
    if costs not in ("measure", "estimate"):
        raise ValueError(f'costs is "measure" or "estimate", not {costs!r}')
    if not isinstance(args, tuple | list):
        raise ValueError("args is the tuple of what the model is called with: for one tensor write (x,)")
    joint = trace_joint(model, tuple(args), dict(kwargs or {}), loss)
    storages = find_storages(joint)
    if costs == "measure":
        found = measure(joint, storages.made)
    else:
        found = estimate(joint, storages.made)
    return to_graph(joint, storages, found)


class _Capture(ModuleType):
    """This package under its public name, `remint.capture(model, args)`."""

    __call__ = staticmethod(capture)


sys.modules[__name__].__class__ = _Capture
