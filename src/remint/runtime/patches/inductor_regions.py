"""Regions that inductor compiled, inside a budget.

Compiled code gets addresses, and writes to them without operator calls. So the inputs of a region are made resident and
pinned before it runs, its writes are announced, and nothing inside is recorded. Its outputs count in the arena, but are
not evicted. To save memory inside a region, use the backend `remint` of `torch.compile`.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from remint import torch_extension

_MODULE = "torch._inductor.output_code"
# The classes of inductor's compiled code. The second does not say which inputs it writes to.
_CLASSES = ("CompiledFxGraph", "CompiledAOTI")

_original: dict[str, Callable[..., Any]] = {}


def install() -> None:
    """Wrap inductor's compiled code when the first budget opens, or later when inductor is loaded."""
    module = sys.modules.get(_MODULE)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        _wrap_classes(module)
    sys.meta_path.insert(0, _finder)


def uninstall() -> None:
    """Restore inductor when the last budget ends."""
    sys.meta_path.remove(_finder)
    module = sys.modules.get(_MODULE)
    for name, call in _original.items():
        getattr(module, name).__call__ = call
    _original.clear()


def _wrap_classes(module: ModuleType) -> None:
    for name in _CLASSES:
        compiled = getattr(module, name, None)
        if compiled is not None and name not in _original:
            _original[name] = compiled.__call__
            compiled.__call__ = _wrap(compiled.__call__)


def _wrap(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def wrapped(self: Any, inputs: Sequence[Any]) -> Any:
        extension = torch_extension.load()
        if not extension.inside():
            return call(self, inputs)
        written = getattr(self, "mutated_input_idxs", range(len(inputs)))
        for index, value in enumerate(inputs):
            if isinstance(value, torch.Tensor):
                extension.pin(value, asked=False)
                if index in written:
                    extension.before_write(value)
        hidden = extension.hide(True)
        try:
            return call(self, inputs)
        finally:
            extension.hide(hidden)

    return wrapped


class _Finder(importlib.abc.MetaPathFinder):
    """Finds inductor as always, and wraps its classes when it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _wrap_classes(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_finder = _Finder()
