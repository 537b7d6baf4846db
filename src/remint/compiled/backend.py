"""The torch.compile backend, registered as `"remint"` by the package's entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from remint.compiled.compilation import Compilation
from remint.compiled.options import Options

# torch.compile hands over the same dict with each graph of a model. Its identity tells which graphs belong together;
# the dict is kept here so that no other can have it.
_compilations: dict[int, tuple[Any, Compilation]] = {}


def backend(
    module: fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a graph so that its training step stays inside a budget.

    >>> import torch
    >>> layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(8)]
    >>> model = torch.nn.Sequential(*layers)
    >>> options = {"budget": "1MiB", "planner": "search", "costs": "estimate", "cache": False}
    >>> planned = torch.compile(model, backend="remint", options=options)
    >>> planned(torch.randn(512, 64)).square().mean().backward()
    """
    known = _compilations.get(id(options))
    if known is None:
        known = _compilations[id(options)] = options, Compilation(Options.of(options))
    return known[1](module, inputs)
