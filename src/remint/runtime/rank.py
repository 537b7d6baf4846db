"""Which rank of how many this process is: torch.distributed says so, or else the launcher's environment."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch.distributed as dist


class Rank(NamedTuple):
    """One of several processes that train together."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"rank {self.number}"


def this_rank() -> Rank | None:
    """Return which rank this process is, or None if it is the only one."""
    if dist.is_available() and dist.is_initialized():
        rank = Rank(dist.get_rank(), dist.get_world_size())
    else:
        try:
            # As torchrun and other launchers for `init_method="env://"` set them.
            rank = Rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        except (KeyError, ValueError):
            return None
    return rank if rank.count > 1 else None


def ranks_on_this_machine() -> int:
    """Return how many ranks the launcher started on this machine: they share its memory."""
    try:
        return max(1, int(os.environ["LOCAL_WORLD_SIZE"])) if this_rank() is not None else 1
    except (KeyError, ValueError):
        return 1
