"""Patches of the methods of `torch.Tensor` that read or write memory without an operator call.

- A method that returns an address makes the tensor resident and pins it, because the caller may keep the address.
- A method that only reads makes it resident and locks it meanwhile.
- A method that writes, or whose result can be written, also keeps what was computed from the tensor before.

The methods are wrapped while a budget is open, and restored when the last budget ends. Two more, which look at the
dispatch keys of a tensor, stay wrapped, because tensors outlive budgets.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.dlpack

from remint import torch_extension
from remint.runtime.patches import inductor_regions

_GIVE_ADDRESS = ("data_ptr", "untyped_storage", "_typed_storage", "storage", "share_memory_", "pin_memory")
_GIVE_WRITABLE_MEMORY = ("numpy", "__array__", "__dlpack__")
_ONLY_READ = ("tolist", "__reduce_ex__", "__deepcopy__", "__repr__", "__str__", "__format__")
_WRITE = ("apply_", "map_", "map2_")
_LOOK_AT_KEYS = ("new", "new_tensor")

_lock = threading.Lock()
_open = 0
_missing = object()
_original: dict[tuple[Any, str], Any] = {}


def install() -> None:
    """Wrap the methods when the first budget opens."""
    global _open
    with _lock:
        _open += 1
        if _open > 1:
            return
        inductor_regions.install()
        for names, wrap in (
            (_GIVE_ADDRESS, _giving_address),
            (_GIVE_WRITABLE_MEMORY, _giving_writable_memory),
            (_ONLY_READ, _reading),
            (_WRITE, _writing),
        ):
            for name in names:
                _replace(torch.Tensor, name, wrap)
        _replace(torch.UntypedStorage, "resize_", _resizing)
        _replace(torch.utils.dlpack, "to_dlpack", _giving_writable_memory)
        _replace(torch, "to_dlpack", _giving_writable_memory)
        _replace(torch._C, "_to_dlpack", _giving_writable_memory)
        for name in _LOOK_AT_KEYS:
            method = getattr(torch.Tensor, name)
            if not hasattr(method, "__wrapped__"):
                setattr(torch.Tensor, name, _without_tag(method))


def uninstall() -> None:
    """Restore the methods when the last budget ends."""
    global _open
    with _lock:
        _open -= 1
        if _open > 0:
            return
        inductor_regions.uninstall()
        for (owner, name), function in _original.items():
            if function is _missing:
                delattr(owner, name)
            else:
                setattr(owner, name, function)
        _original.clear()


def _replace(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    function = getattr(owner, name, None)
    if function is None:
        return
    _original[owner, name] = owner.__dict__.get(name, _missing)
    setattr(owner, name, wrap(function))


def _giving_address(method: Callable[..., Any]) -> Callable[..., Any]:
    pin = functools.partial(torch_extension.load().pin, asked=False)

    @functools.wraps(method)
    def wrapped(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        pin(self)
        return method(self, *args, **kwargs)

    return wrapped


def _giving_writable_memory(method: Callable[..., Any]) -> Callable[..., Any]:
    extension = torch_extension.load()

    @functools.wraps(method)
    def wrapped(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        # A write may follow.
        extension.before_write(self)
        extension.pin(self, asked=False)
        return method(self, *args, **kwargs)

    return wrapped


def _resizing(method: Callable[..., Any]) -> Callable[..., Any]:
    """FSDP frees parameters by `resize_(0)`: before that, what was computed from them is kept, or they are."""
    before_resize = torch_extension.load().before_resize

    @functools.wraps(method)
    def wrapped(self: torch.UntypedStorage, size: int) -> Any:
        before_resize(self, size)
        return method(self, size)

    return wrapped


def _reading(method: Callable[..., Any]) -> Callable[..., Any]:
    read_lock = torch_extension.load().ReadLock

    @functools.wraps(method)
    def wrapped(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        lock = read_lock(self)
        try:
            return method(self, *args, **kwargs)
        finally:
            lock.release()

    return wrapped


def _writing(method: Callable[..., Any]) -> Callable[..., Any]:
    extension = torch_extension.load()

    @functools.wraps(method)
    def wrapped(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        extension.before_write(self)
        extension.pin(self, asked=False)
        locks = [extension.ReadLock(other) for other in args if isinstance(other, torch.Tensor)]
        try:
            return method(self, *args, **kwargs)
        finally:
            for lock in locks:
                lock.release()

    return wrapped


def _without_tag(method: Callable[..., Any]) -> Callable[..., Any]:
    without_tag = torch_extension.load().without_tag

    @functools.wraps(method)
    def wrapped(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return method(without_tag(self), *args, **kwargs)

    return wrapped
