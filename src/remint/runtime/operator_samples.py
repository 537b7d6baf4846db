"""PyTorch's operator database: samples to run with and without a budget, and how their results are compared.

Used by `remint doctor --device` and by the tests. The database is a part of `torch.testing`, which needs `expecttest`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

# Their results are whatever was in memory.
UNINITIALIZED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
# The one with missing columns returns residuals that LAPACK leaves undefined.
UNDEFINED = {"linalg.lstsq"}


def operators(dtype: torch.dtype | None = torch.float32) -> list[Any]:
    """Return the operators whose results are defined, and that take numbers of this type; with None, of any type."""
    from torch.testing._internal.common_methods_invocations import op_db

    known: list[Any] = op_db
    defined = [op for op in known if op.name not in UNINITIALIZED | UNDEFINED]
    return [op for op in defined if dtype is None or dtype in op.supported_dtypes("cpu")]


def samples_of(op: Any, most: int | None = None, dtype: torch.dtype = torch.float32) -> Iterator[tuple[Any, Any, Any]]:
    """Return the first samples of an operator: input, arguments and keywords, with tensors on the CPU."""
    grad = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grad), most):
        yield sample.input, sample.args, sample.kwargs


def is_dense(leaf: Any) -> bool:
    """Return whether it is a tensor that can be copied byte by byte."""
    return isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and not leaf.is_nested


def copied(tree: Any, device: str = "cpu") -> Any:
    """Copy the dense tensors to a device; they are leaves there. Arguments that name the CPU name the device."""

    def one(leaf: Any) -> Any:
        if is_dense(leaf):
            return leaf.detach().clone().to(device).requires_grad_(leaf.requires_grad)
        is_device = isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf == "cpu")
        return torch.device(device) if is_device else leaf

    return tree_map(one, tree)


def outcome(op: Any, inputs: Any, args: Any, kwargs: Any) -> list[Any]:
    """Run an operator; return its results, and the gradients of its arguments."""
    torch.manual_seed(0)
    outputs = tree_leaves(op(inputs, *args, **kwargs))
    made = [t for t in outputs if isinstance(t, torch.Tensor) and t.requires_grad and t.layout == torch.strided]
    leaves = [t for t in tree_leaves((inputs, args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]
    if made and leaves:
        outputs += torch.autograd.grad(made, leaves, [torch.ones_like(t) for t in made], allow_unused=True)
    return outputs


def to_host(outputs: list[Any]) -> list[Any]:
    """Copy the tensors to the CPU."""
    return [output.cpu() if isinstance(output, torch.Tensor) else output for output in outputs]


def same(a: Any, b: Any) -> bool:
    """Return whether two results have the same type, shape and bits. All NaNs are the same."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return type(a) is type(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.layout != torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    return torch.equal(a, b) or (torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num()))


def all_same(a: list[Any], b: list[Any]) -> bool:
    """Return whether two lists of results are the same."""
    return len(a) == len(b) and all(map(same, a, b))
