"""Functions on one tensor of a budget. On other tensors they do nothing."""

from __future__ import annotations

import torch

from remint import torch_extension


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """Make `tensor` resident and never evict it again: for code that keeps its address. Returns the tensor."""
    torch_extension.load().pin(tensor, asked=True)
    return tensor


def materialize(tensor: torch.Tensor) -> torch.Tensor:
    """Make `tensor` resident now: for code that reads its memory around PyTorch's dispatcher. Returns the tensor."""
    torch_extension.load().materialize(tensor)
    return tensor


def is_resident(tensor: torch.Tensor) -> bool:
    """Return whether the bytes of `tensor` are in memory."""
    return bool(torch_extension.load().is_resident(tensor))


def evict(tensor: torch.Tensor) -> bool:
    """Evict `tensor` if it can be recomputed or offloaded; return whether it is evicted now. For tests."""
    return bool(torch_extension.load().evict(tensor))
