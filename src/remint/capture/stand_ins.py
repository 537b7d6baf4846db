"""Real tensors in place of fake ones, so that one op of a traced graph can run on its own."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree


def stand_ins(tree: Any) -> Any:
    """Return `tree` with every fake tensor replaced by a real one of the same layout; aliases stay aliases."""
    flat: dict[int, torch.Tensor] = {}

    def real(leaf: Any) -> Any:
        if not isinstance(leaf, FakeTensor):
            return leaf
        storage = leaf.untyped_storage()
        if storage._cdata not in flat:
            length = -(-int(storage.nbytes()) // leaf.element_size())
            filled = torch.zeros(length, dtype=leaf.dtype, device=leaf.device)
            # Integers may be indices, and 0 is always in range. Floats are random: ops on zeros can be too fast.
            flat[storage._cdata] = filled.normal_() if leaf.is_floating_point() else filled
        base = flat[storage._cdata].view(leaf.dtype)
        return base.as_strided(leaf.size(), leaf.stride(), int(leaf.storage_offset()))

    state = torch.get_rng_state()
    try:
        return pytree.tree_map(real, tree)
    finally:
        torch.set_rng_state(state)


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Return the tensors of a tree, in order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
