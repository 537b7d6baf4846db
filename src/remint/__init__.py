"""Train any PyTorch model inside a memory budget that holds, by tensor rematerialization."""

from remint.errors import BudgetError, TraceError

__all__ = ["BudgetError", "TraceError"]
