"""The memory that an op needs beyond its inputs and outputs, measured by running the op in a session of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import fx

from remint import torch_extension
from remint.capture.stand_ins import tensors_in

# Addresses, not memory: only the pages that an op touches are taken.
_SESSION_BYTES = 64 << 30


class Workspace(NamedTuple):
    """What one op needs beyond the bytes that the shapes of its results take."""

    scratch: int
    """Bytes in use at the op's peak beyond its results."""
    excess: int
    """Bytes of its results beyond their shapes: a loss can come in the storage of what it reduced."""


def measure_workspace(node: fx.Node, args: Any, kwargs: Any) -> Workspace:
    """Run the op of `node` once, and return what it needed."""
    given = {tensor.untyped_storage()._cdata for tensor in tensors_in((args, kwargs))}
    target: Callable[..., Any] = node.target  # type: ignore[assignment]
    session = torch_extension.new_session(_SESSION_BYTES)
    session.enter()
    try:
        with torch.no_grad():
            result = target(*args, **kwargs)
        storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors_in(result)}
        figures = session.figures()
        # The results are what is still in use.
        scratch = figures["peak_bytes"] - figures["used_bytes"]
        del result
    finally:
        session.leave()
        session.close()
    made = [nbytes for address, nbytes in storages.items() if address not in given]
    shapes = {t.untyped_storage()._cdata: int(t.untyped_storage().nbytes()) for t in tensors_in(node.meta["val"])}
    excess = max(0, sum(made) - sum(shapes.values())) if made else 0
    return Workspace(scratch + _heap_bytes(node, args), excess)


def _heap_bytes(node: fx.Node, args: Any) -> int:
    """Return the workspace that an op takes from the heap itself, which no allocator of PyTorch's sees.

    PyTorch's own convolution (which it prefers for 1x1 kernels and one thread) makes the columns of the gradient of
    one sample in a `std::vector`, in each thread that works on samples.
    """
    if node.target is not torch.ops.aten.convolution_backward.default:
        return 0
    grad, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, mask = args
    backend = torch._C._select_conv_backend(
        x, weight, None, stride, padding, dilation, transposed, output_padding, groups, bias_sizes
    )
    if backend.name != "Slow2d" or not mask[0]:
        return 0
    threads = min(torch.get_num_threads(), len(x))
    return int(threads * weight[0].numel() * grad[0, 0].numel() * x.element_size())
