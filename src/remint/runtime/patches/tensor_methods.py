"""The few methods of `torch.Tensor` that read memory without an operator call.

Whoever gets an address may keep it: the tensor is made resident and pinned. Readers that keep nothing only need it
resident. The methods are wrapped while a budget is open, and put back when the last one ends.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from remint import torch_extension
from remint.runtime.patches import inductor_regions

# On torch.Tensor: these give the address away ...
_KEEP = (
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
# ... and these only read.
_READ = ("tolist", "__reduce_ex__", "__deepcopy__", "__repr__", "__str__", "__format__")

_lock = threading.Lock()
_open = 0
_missing = object()
_before: dict[str, Any] = {}


def watch() -> None:
    """A budget opens: wrap the methods if it is the first."""
    global _open
    with _lock:
        _open += 1
        if _open > 1:
            return
        inductor_regions.watch()
        module = torch_extension.load()
        pin = functools.partial(module.pin, asked=False)
        for names, prepare in ((_KEEP, pin), (_READ, module.materialize)):
            for name in names:
                method = getattr(torch.Tensor, name, None)
                if method is None:
                    continue
                _before[name] = torch.Tensor.__dict__.get(name, _missing)
                setattr(torch.Tensor, name, _wrap(method, prepare))


def unwatch() -> None:
    """A budget ended: put the methods back if it was the last."""
    global _open
    with _lock:
        _open -= 1
        if _open > 0:
            return
        inductor_regions.unwatch()
        for name, method in _before.items():
            if method is _missing:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, method)
        _before.clear()


def _wrap(method: Callable[..., Any], prepare: Callable[[torch.Tensor], None]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapped(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        prepare(self)
        return method(self, *args, **kwargs)

    return wrapped
