"""The compiled part, `remint._torch`, loaded when the first budget opens."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from remint import errors

if TYPE_CHECKING:
    from types import ModuleType


@functools.cache
def load() -> ModuleType:
    """Return the module; an `ImportError` says what to do if it is not there or was built for another torch."""
    try:
        import torch
    except ImportError as error:
        raise ImportError("remint.budget runs PyTorch programs: install torch, then remint again") from error
    try:
        from remint import _torch
    except ImportError as error:
        raise ImportError(
            "remint._torch was not built, or was built against another torch. Build it against the one that is "
            "installed: pip install --no-build-isolation --force-reinstall --no-deps remint"
        ) from error
    built, found = _torch.torch_version, torch.__version__.split("+")[0]
    if built.split("+")[0] != found:
        raise ImportError(
            f"remint._torch was built against torch {built}, but torch {found} is installed: build it again with "
            "pip install --no-build-isolation --force-reinstall --no-deps remint"
        )
    errors.BudgetError.__bases__ = (torch.OutOfMemoryError,)
    return _torch
