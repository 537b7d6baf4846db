"""Train any PyTorch model inside a memory budget that holds, by tensor rematerialization."""

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
