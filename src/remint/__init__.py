"""Train any PyTorch model inside a memory budget that holds, by tensor rematerialization."""

from __future__ import annotations

from typing import Any

from remint.errors import BudgetError, TraceError
from remint.run import Run
from remint.simulator import Sweep, policy_names, simulate, smallest_budget, sweep
from remint.trace import Trace, TraceBuilder

__all__ = [
    "BudgetError",
    "Run",
    "Sweep",
    "Trace",
    "TraceBuilder",
    "TraceError",
    "policy_names",
    "simulate",
    "smallest_budget",
    "sweep",
]

# What needs torch, which the rest does without: imported when it is first asked for.
_ONLINE = ("budget", "evict", "is_resident", "materialize", "pin")
__all__ += list(_ONLINE)


def __getattr__(name: str) -> Any:
    if name in _ONLINE:
        from remint import online

        globals()[name] = getattr(online, name)
        return globals()[name]
    raise AttributeError(f"module 'remint' has no attribute {name!r}")
