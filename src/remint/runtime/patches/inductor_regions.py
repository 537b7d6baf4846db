"""Regions that inductor compiled, inside a budget.

Their code gets the addresses of its inputs and of the buffers it asks for, and writes to them where no operator call
is seen. So, while such a region runs, its inputs are resident and pinned, what it writes to is made known before, and
nothing in it is recorded: what it makes is in the arena and counts, but is not evicted. Memory is saved only by what
is around it; to plan what is inside, there is the backend `remint` of `torch.compile`.
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
# What inductor hands out as compiled code. The second kind does not say what it writes to.
_CLASSES = ("CompiledFxGraph", "CompiledAOTI")

_before: dict[str, Callable[..., Any]] = {}


def watch() -> None:
    """A first budget opens: see to it that compiled regions are announced, now or when inductor is loaded."""
    module = sys.modules.get(_MODULE)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        _wrap_classes(module)
    sys.meta_path.insert(0, _finder)


def unwatch() -> None:
    """The last budget ended: leave inductor as it was."""
    sys.meta_path.remove(_finder)
    module = sys.modules.get(_MODULE)
    for name, call in _before.items():
        getattr(module, name).__call__ = call
    _before.clear()


def _wrap_classes(module: ModuleType) -> None:
    for name in _CLASSES:
        compiled = getattr(module, name, None)
        if compiled is not None and name not in _before:
            _before[name] = compiled.__call__
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
    """Lets inductor be found as always, and wraps its classes once they are there."""

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
