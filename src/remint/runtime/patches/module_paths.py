"""Which `nn.Module` the program is in, while someone wants to know: hooks on every `forward` tell the runtime.

The path starts at the outermost module that was called: `GPT.blocks.3.mlp`.
"""

from __future__ import annotations

import threading
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from remint import torch_extension

_lock = threading.Lock()
_watchers = 0
_handles: list[RemovableHandle] = []


class _Place(threading.local):
    """Where a thread is."""

    def __init__(self) -> None:
        self.paths: list[str] = []  # of the modules it is in, the innermost last
        self.names: dict[int, str] = {}  # of all modules of the outermost one, by id


_place = _Place()


def watch() -> None:
    """Follow all modules, until `unwatch` was called as often."""
    global _watchers
    with _lock:
        _watchers += 1
        if _watchers == 1:
            _handles[:] = [
                register_module_forward_pre_hook(_enter),
                register_module_forward_hook(_leave, always_call=True),
            ]


def unwatch() -> None:
    """Stop following modules, if nobody else wants to know."""
    global _watchers
    with _lock:
        _watchers -= 1
        if _watchers == 0:
            for handle in _handles:
                handle.remove()
            _handles.clear()


def _enter(module: nn.Module, _args: Any) -> None:
    root = type(module).__name__
    if not _place.paths:
        # Not kept for the next call: modules may be put in and out at any time.
        _place.names = {id(m): f"{root}.{name}" if name else root for name, m in module.named_modules()}
    # What is not part of the outermost module was made by it on the way.
    path = _place.names.get(id(module)) or f"{_place.paths[-1]}.{root}"
    _place.paths.append(path)
    torch_extension.load().enter_module(path)


def _leave(_module: nn.Module, _args: Any, _output: Any) -> None:
    # A budget may have been opened in the middle of a forward.
    if _place.paths:
        _place.paths.pop()
    torch_extension.load().enter_module(_place.paths[-1] if _place.paths else "")
