"""Which rank of how many this process is: torch.distributed says so, or else the launcher's environment."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, cast

import torch.distributed as dist


class Store(Protocol):
    """What ranks can leave for each other without a collective."""

    def set(self, key: str, value: str | bytes) -> None:
        """Leave a value."""

    def get(self, key: str) -> bytes:
        """Return a value; wait until it is there."""

    def check(self, keys: list[str]) -> bool:
        """Return whether all are there."""

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Leave a value if none is there, for an empty `expected`; return what is there then."""


@dataclass(frozen=True)
class Rank:
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


def store_of_ranks() -> Store | None:
    """Return a store that all ranks reach: torchrun's, which outlives the ranks, or that of the process group."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return _launchers_store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), attempt)
    if dist.is_available() and dist.is_initialized():
        return _with_prefix(dist.distributed_c10d._get_default_store(), attempt)
    return None


@functools.cache
def _launchers_store(host: str, port: int, attempt: str) -> Store:
    from torch._C._distributed_c10d import TCPStore

    limit = timedelta(seconds=60)
    return _with_prefix(TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=limit), attempt)


def _with_prefix(store: Any, attempt: str) -> Store:
    from torch._C._distributed_c10d import PrefixStore

    return cast(Store, PrefixStore(f"remint/{attempt}", store))
