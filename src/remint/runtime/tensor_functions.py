"""What a program can tell remint about one tensor. Outside of budgets, and on other tensors, these do nothing."""

from __future__ import annotations

import torch

from remint import torch_extension


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """Make `tensor` resident and keep it so: for code that keeps its address. Returns the tensor."""
    torch_extension.load().pin(tensor, asked=True)
    return tensor


def materialize(tensor: torch.Tensor) -> torch.Tensor:
    """Make `tensor` resident now: for code that reads its memory around PyTorch's dispatcher. Returns the tensor."""
    torch_extension.load().materialize(tensor)
    return tensor


def is_resident(tensor: torch.Tensor) -> bool:
    """Tell whether the bytes of `tensor` are there."""
    return bool(torch_extension.load().is_resident(tensor))


def evict(tensor: torch.Tensor) -> bool:
    """Drop the bytes of `tensor` if they can be made again; tell whether they are gone. For tests and the curious."""
    return bool(torch_extension.load().evict(tensor))
