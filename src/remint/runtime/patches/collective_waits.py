"""A patch of `Work.wait`, so that the time a program waits for other ranks is counted apart."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import torch.distributed

from remint import torch_extension

_lock = threading.Lock()
_users = 0
_original: Callable[..., Any] | None = None


def install() -> None:
    """Wrap the method when the first budget opens."""
    global _users, _original
    if not torch.distributed.is_available():
        return
    with _lock:
        _users += 1
        if _users == 1:
            _original = torch.distributed.Work.wait
            torch.distributed.Work.wait = _timed(_original)  # type: ignore[method-assign]


def uninstall() -> None:
    """Restore the method when the last budget ends."""
    global _users, _original
    if not torch.distributed.is_available():
        return
    with _lock:
        _users -= 1
        if _users == 0 and _original is not None:
            torch.distributed.Work.wait = _original  # type: ignore[method-assign]
            _original = None


def _timed(wait: Callable[..., Any]) -> Callable[..., Any]:
    waited_for_ranks = torch_extension.load().waited_for_ranks

    @functools.wraps(wait)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter_ns()
        try:
            return wait(self, *args, **kwargs)
        finally:
            waited_for_ranks(time.perf_counter_ns() - begin)

    return wrapped
