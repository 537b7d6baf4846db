"""The function of a script that says what one training step is: `script.py:fn`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def load_step(text: str) -> Callable[[], tuple[Any, Any, Any, Any]]:
    """Return a function that calls `fn` of `script.py:fn`, and returns its model, args, kwargs and loss."""
    path, _, name = text.rpartition(":")
    if not path or not name:
        raise ValueError(f"{text!r} names no function: write script.py:fn")
    file = Path(path)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None or not file.exists():
        raise ValueError(f"{path} is no Python file that can be read")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise ValueError(f"{path} has no function {name!r}")

    def make() -> tuple[Any, Any, Any, Any]:
        step = getattr(module, name)()
        if not isinstance(step, tuple) or not 2 <= len(step) <= 4:
            raise ValueError(f"{name}() must return (model, args[, kwargs[, loss]])")
        model, args, *rest = step
        kwargs, loss = (*rest, None, None)[:2]
        return model, args, kwargs, loss

    return make
