"""Hooks on every `forward` that tell the runtime which `nn.Module` the program is in.

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
_users = 0
_handles: list[RemovableHandle] = []


class _Place(threading.local):
    """Where a thread is."""

    def __init__(self) -> None:
        self.paths: list[str] = []  # of the modules it is in, the innermost last
        self.names: dict[int, str] = {}  # of all modules of the outermost one, by id


_place = _Place()


def install() -> None:
    """Follow all modules, until `uninstall` was called as often."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _handles[:] = [
                register_module_forward_pre_hook(_enter),
                register_module_forward_hook(_leave, always_call=True),
            ]


def uninstall() -> None:
    """Remove the hooks when the last user is gone."""
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            for handle in _handles:
                handle.remove()
            _handles.clear()


def _enter(module: nn.Module, _args: Any) -> None:
    root = type(module).__name__
    if not _place.paths:
        # Not kept for the next call: a program may add and remove modules at any time.
        _place.names = {id(m): f"{root}.{name}" if name else root for name, m in module.named_modules()}
    # A module outside the outermost one's tree was created during its forward.
    path = _place.names.get(id(module)) or f"{_place.paths[-1]}.{root}"
    _place.paths.append(path)
    torch_extension.load().enter_module(path)


def _leave(_module: nn.Module, _args: Any, _output: Any) -> None:
    # A budget may have been opened in the middle of a forward.
    if _place.paths:
        _place.paths.pop()
    torch_extension.load().enter_module(_place.paths[-1] if _place.paths else "")
