"""Patches of the methods of `torch.Tensor` that read memory without an operator call.

A method that returns an address makes the tensor resident and pins it, because the caller may keep the address. A
method that only reads makes it resident. The methods are wrapped while a budget is open, and restored when the last
budget ends.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from remint import torch_extension
from remint.runtime.patches import inductor_regions

# Methods of torch.Tensor whose result knows the address ...
_GIVE_ADDRESS = (
    "numpy",
    "__array__",
    "__dlpack__",
    "data_ptr",
    "untyped_storage",
    "_typed_storage",
    "storage",
    "share_memory_",
    "pin_memory",
)
# ... and methods that only read.
_ONLY_READ = ("tolist", "__reduce_ex__", "__deepcopy__", "__repr__", "__str__", "__format__")

_lock = threading.Lock()
_open = 0
_missing = object()
_original: dict[str, Any] = {}


def install() -> None:
    """Wrap the methods when the first budget opens."""
    global _open
    with _lock:
        _open += 1
        if _open > 1:
            return
        inductor_regions.install()
        module = torch_extension.load()
        pin = functools.partial(module.pin, asked=False)
        for names, prepare in ((_GIVE_ADDRESS, pin), (_ONLY_READ, module.materialize)):
            for name in names:
                method = getattr(torch.Tensor, name, None)
                if method is None:
                    continue
                _original[name] = torch.Tensor.__dict__.get(name, _missing)
                setattr(torch.Tensor, name, _wrap(method, prepare))


def uninstall() -> None:
    """Restore the methods when the last budget ends."""
    global _open
    with _lock:
        _open -= 1
        if _open > 0:
            return
        inductor_regions.uninstall()
        for name, method in _original.items():
            if method is _missing:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, method)
        _original.clear()


def _wrap(method: Callable[..., Any], prepare: Callable[[torch.Tensor], None]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapped(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        prepare(self)
        return method(self, *args, **kwargs)

    return wrapped
