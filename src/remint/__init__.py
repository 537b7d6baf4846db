"""Train any PyTorch model inside a memory budget that holds, by tensor rematerialization."""

from typing import Any

from remint.errors import BudgetError, TraceError
from remint.graph import Graph, Op
from remint.plan import Compute, Free, Plan, verify
from remint.planners import frontier, plan
from remint.run import Run
from remint.simulator import Sweep, policy_names, simulate, smallest_budget, sweep
from remint.trace import Trace, TraceBuilder

__all__ = [
    "BudgetError",
    "Compute",
    "Free",
    "Graph",
    "Op",
    "Plan",
    "Run",
    "Sweep",
    "Trace",
    "TraceBuilder",
    "TraceError",
    "capture",
    "frontier",
    "plan",
    "policy_names",
    "simulate",
    "smallest_budget",
    "sweep",
    "verify",
]


def __getattr__(name: str) -> Any:
    # Capture needs torch, which nothing else here imports. The package is callable: it is `capture` itself.
    if name == "capture":
        import remint.capture

        return remint.capture
    raise AttributeError(f"module 'remint' has no attribute {name!r}")
