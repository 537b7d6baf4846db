"""A hook on every optimizer that tells the budget of the thread where a step of the program ends."""

from __future__ import annotations

import threading
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from remint import torch_extension

_lock = threading.Lock()
_users = 0
_handle: RemovableHandle | None = None


def install() -> None:
    """Follow all optimizers, until `uninstall` was called as often."""
    global _users, _handle
    with _lock:
        _users += 1
        if _users == 1:
            _handle = register_optimizer_step_post_hook(_stepped)


def uninstall() -> None:
    """Remove the hook when the last user is gone."""
    global _users, _handle
    with _lock:
        _users -= 1
        if _users == 0 and _handle is not None:
            _handle.remove()
            _handle = None


def _stepped(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
    torch_extension.load().step_ends()
