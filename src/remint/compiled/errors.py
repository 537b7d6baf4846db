"""Errors that leave a backend as they are.

torch.compile wraps what a backend raises in `BackendCompilerFailed`, except its own `ShortenTraceback`. Errors that
are both reach the user as what they are, and without dynamo's frames.
"""

from __future__ import annotations

import sys

from torch._dynamo.exc import ShortenTraceback

from remint.errors import BudgetError


class OptionError(ValueError, ShortenTraceback):
    """An option of the backend that makes no sense: the message says which are there."""

    def __init__(self, message: str) -> None:
        ShortenTraceback.__init__(self, message, first_useful_frame=sys._getframe(1))


class PlanError(BudgetError, ShortenTraceback):
    """A `remint.BudgetError` of the compiled path: no plan inside the budget was found."""

    def __init__(self, message: str, error: BudgetError) -> None:
        ShortenTraceback.__init__(self, message, first_useful_frame=sys._getframe(1))
        self.min_budget_bytes = error.min_budget_bytes
        self.known_budget_bytes = error.known_budget_bytes
