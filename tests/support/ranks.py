"""Processes connected by gloo, which tests give work to: a function of a test module, called as `function(rank)`.

A test that fails or takes too long ends all of them, because the ranks may no longer agree on what comes next. The
following test gets new ones.
"""

from __future__ import annotations

import functools
import os
import signal
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.isolated import LATE, Worker

RANKS = 2
SIDE = 64
# A rank that waits for the other one says so itself, before the limit of the test. On a busy machine one rank may be
# half a minute behind, while it imports for example.
TIMEOUT = timedelta(seconds=90)


def connect(rank: int, store: str, timeout: timedelta = TIMEOUT, *, count: int = RANKS) -> None:
    """Connect this process with the others; `store` is a file that is not there yet."""
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count, timeout=timeout)


def values(rank: int, count: int = 1, rows: int = SIDE) -> list[torch.Tensor]:
    """Whole numbers that differ between ranks and tensors."""
    return [torch.arange(rows * SIDE, dtype=torch.float32).reshape(rows, SIDE) * (rank + 2) + k for k in range(count)]


class Ranks:
    def __init__(self, count: int = RANKS) -> None:
        self._count = count
        self._workers: list[Worker] = []

    def run(self, test: Callable[..., None], seconds: float = 180, **kwargs: Any) -> None:
        """Call `test(rank, **kwargs)` in all processes; fail if one fails or is not done in time."""
        if not self._workers:
            store = str(Path(tempfile.mkdtemp()) / "store")
            self._workers = [
                Worker(functools.partial(connect, rank, store, count=self._count)) for rank in range(self._count)
            ]
        for rank, worker in enumerate(self._workers):
            worker.send((test.__module__, test.__name__, {"rank": rank, **kwargs}))
        end, problems = time.monotonic() + seconds, []
        for rank, worker in enumerate(self._workers):
            problem = worker.result(end)
            if problem is not None:
                problems.append(f"rank {rank}: {problem}")
                # The others may wait for this one for ever; they get a moment to fail by themselves.
                end = min(end, time.monotonic() + 2)
        if problems:
            problems += self._end(signal.SIGABRT if any(LATE in p for p in problems) else signal.SIGKILL)
            pytest.fail("\n".join(problems), pytrace=False)

    def close(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, first: signal.Signals) -> list[str]:
        workers, self._workers = self._workers, []
        return [f"output of rank {rank}:\n{worker.end(first)[-4000:]}" for rank, worker in enumerate(workers)]
