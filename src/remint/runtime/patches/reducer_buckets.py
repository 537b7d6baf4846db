"""Patches of DDP, so that nothing is offloaded that it looks at without an operator.

DDP's reducer asks whether a gradient and its place in a bucket share memory, which reads a field of both storages that
an offloaded tensor does not have. So buckets stay in memory from when the reducer makes them, and gradients that are
there when the forward begins. Without a tier both stay anyway, because they cannot be recomputed.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from remint.runtime.tensor_functions import pin

_lock = threading.Lock()
_users = 0
_originals: list[tuple[type, str, Callable[..., Any]]] = []


def install() -> None:
    """Wrap the methods when the first budget with a tier opens."""
    global _users
    if not torch.distributed.is_available():
        return
    with _lock:
        _users += 1
        if _users == 1:
            from torch.distributed import Reducer  # type: ignore[attr-defined]
            from torch.nn.parallel import DistributedDataParallel

            _replace(Reducer, "__init__", _pinning_buckets)
            _replace(Reducer, "_rebuild_buckets", _pinning_buckets)
            _replace(DistributedDataParallel, "_pre_forward", _pinning_gradients)


def uninstall() -> None:
    """Restore the methods when the last one ends."""
    global _users
    if not torch.distributed.is_available():
        return
    with _lock:
        _users -= 1
        while _users == 0 and _originals:
            owner, name, original = _originals.pop()
            setattr(owner, name, original)


def _replace(owner: type, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(owner, name)
    _originals.append((owner, name, original))
    setattr(owner, name, wrap(original))


class _PinningNew(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Pins the memory that is allocated inside."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten.empty:
            pin(result)
        return result


def _pinning_buckets(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with _PinningNew():  # type: ignore[no-untyped-call]
            return original(*args, **kwargs)

    return wrapped


def _pinning_gradients(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        for parameter in self.parameters():
            if parameter.grad is not None:
                pin(parameter.grad)
        return original(self, *args, **kwargs)

    return wrapped
