"""Errors that leave a backend as they are.

torch.compile wraps what a backend raises in `BackendCompilerFailed`, except its own `ShortenTraceback`. Errors that
are both reach the user as what they are, and without dynamo's frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch._dynamo.exc import ShortenTraceback

from remint.errors import BudgetError

if TYPE_CHECKING:
    from typing_extensions import Self


class _LeavesBackend(ShortenTraceback):
    def __init__(self, message: str) -> None:
        super().__init__(message, first_useful_frame=None)

    def remove_dynamo_frames(self) -> Self:
        """Let the traceback begin with the first frame of remint."""
        traceback = self.__traceback__
        while traceback is not None and not traceback.tb_frame.f_globals.get("__name__", "").startswith("remint."):
            traceback = traceback.tb_next
        return self if traceback is None else self.with_traceback(traceback)


class OptionError(ValueError, _LeavesBackend):
    """An option of the backend that makes no sense: the message says which are there."""

    def __init__(self, message: str) -> None:
        _LeavesBackend.__init__(self, message)


class PlanError(BudgetError, _LeavesBackend):
    """A `remint.BudgetError` of the compiled path: no plan inside the budget was found."""

    def __init__(self, message: str, error: BudgetError) -> None:
        _LeavesBackend.__init__(self, message)
        self.min_budget_bytes = error.min_budget_bytes
        self.known_budget_bytes = error.known_budget_bytes
