"""The errors that users of remint can meet, beside `ValueError` for bad arguments."""

from __future__ import annotations


class _Error(RuntimeError):
    """A base that can be replaced: `BudgetError` is a `torch.OutOfMemoryError` once torch is in use."""


class BudgetError(_Error):
    """A budget cannot hold what was asked: the message says what was asked, what is possible and what to do.

    `min_budget_bytes` is a proven lower bound: no smaller budget can hold it. `known_budget_bytes` is an upper bound:
    the smallest budget for which a plan is known that fits. `op` is what ran when something did not fit. Each is None
    where it is not known.
    """

    def __init__(
        self,
        message: str,
        *,
        min_budget_bytes: int | None = None,
        known_budget_bytes: int | None = None,
        op: str | None = None,
    ) -> None:
        super().__init__(message)
        self.op = op
        self.min_budget_bytes = min_budget_bytes
        self.known_budget_bytes = known_budget_bytes


class TraceError(ValueError):
    """A trace breaks a rule: the message names the file and line, or the event."""
