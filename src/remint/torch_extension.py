"""Loads `remint._torch`, the engine on real tensors, and opens its sessions.

The module stands below both the runtime and capture: the runtime opens a session for each budget and each recording,
capture opens one to measure the workspace of an op.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from remint import errors
from remint.engine_options import EngineOptions

if TYPE_CHECKING:
    from types import ModuleType

    import torch

    from remint import _torch

_BUILD_AGAIN = "pip install --no-build-isolation --force-reinstall --no-deps remint"

# A session that only allocates: nothing is evicted by choice, recorded or checked.
_PLAIN_SESSION: dict[str, Any] = {
    "device": "cpu",
    **EngineOptions(policy="lru").keywords(),
    "chaos": False,
    "spill": False,
    "timeline": False,
    "events": False,
    "blocks": False,
    "record": False,
    "source_lines": False,
    "learn": False,
}


@functools.cache
def load() -> ModuleType:
    """Return `remint._torch`; raise an `ImportError` that says what to do if it cannot be used with this torch."""
    try:
        import torch
    except ImportError as error:
        raise ImportError("remint.budget runs PyTorch programs: install torch, then remint again") from error
    try:
        from remint import _torch
    except ImportError as error:
        raise ImportError(
            "remint._torch was not built, or was built against another torch. Build it against the installed one: "
            f"{_BUILD_AGAIN}"
        ) from error
    built, found = _torch.torch_version, torch.__version__.split("+")[0]
    if built.split("+")[0] != found:
        raise ImportError(
            f"remint._torch was built against torch {built}, but torch {found} is installed. Build it again: "
            f"{_BUILD_AGAIN}"
        )
    errors.BudgetError.__bases__ = (torch.OutOfMemoryError,)
    return _torch


def new_session(budget: int, **options: Any) -> _torch.Session:
    """Return a session of `budget` bytes that is not entered yet; `options` change those of a plain session."""
    session: _torch.Session = load().Session(budget=budget, **{**_PLAIN_SESSION, **options})
    return session


def device_name(device: str | torch.device | None) -> str:
    """Return the device that a budget is of: the given one, or the accelerator if remint has budgets for it."""
    import torch

    if device is not None:
        return str(torch.device(device))
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    ours = accelerator is not None and accelerator.type == torch._C._get_privateuse1_backend_name()
    return str(accelerator) if ours else "cpu"
