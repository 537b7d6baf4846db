"""Writes the figures of each step to TensorBoard, Weights & Biases, MLflow, accelerate, or a function."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from remint.runtime.live_run import LiveRun

# What the figures of a run were when they were last asked for.
_before: WeakKeyDictionary[LiveRun, dict[str, Any]] = WeakKeyDictionary()

_COUNTS = ("num_evictions", "num_rematerializations", "computed_seconds", "rematerialized_seconds", "search_seconds")


def step_figures(run: LiveRun) -> dict[str, float]:
    """Return the figures of the steps since the last call, or since the budget was opened.

    >>> import torch
    >>> from remint.runtime import budget
    >>> with budget("1MiB") as run:
    ...     _ = torch.ones(1000).exp()
    ...     figures = step_figures(run)
    >>> figures["remint/rematerializations"], figures["remint/budget_bytes"]
    (0, 1048576)
    """
    now = run.summary()
    before = _before.get(run, {})
    _before[run] = now
    evictions, again, computed, recomputed, searching = (now[name] - before.get(name, 0) for name in _COUNTS)
    return {
        "remint/budget_bytes": now["budget_bytes"],
        "remint/peak_bytes": now["peak_bytes"],
        "remint/pinned_bytes": now["pinned_bytes"],
        "remint/evictions": evictions,
        "remint/rematerializations": again,
        "remint/slowdown": 1 + (recomputed + searching) / computed if computed else 1.0,
    }


def log_step(run: LiveRun, writer: Any, step: int) -> dict[str, float]:
    """Write the figures of the last step; return them. Call it once after each step.

    `writer` can be a `SummaryWriter` of TensorBoard, the module or a run of `wandb`, the module `mlflow`, an
    `Accelerator`, a logger of Lightning, or a function of a dict and a step.
    """
    figures = step_figures(run)
    if hasattr(writer, "add_scalar"):
        for name, value in figures.items():
            writer.add_scalar(name, value, step)
    elif hasattr(writer, "log_metrics"):
        writer.log_metrics(figures, step=step)
    elif hasattr(writer, "log"):
        writer.log(figures, step=step)
    elif callable(writer):
        writer(figures, step)
    else:
        raise ValueError(
            f"{type(writer).__name__} has none of add_scalar, log_metrics and log: pass a function of a dict and a step"
        )
    return figures
