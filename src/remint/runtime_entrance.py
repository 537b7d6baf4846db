"""The entrance to the runtime for the compiled path, which does not import it.

The package's front (`remint/__init__.py`) says what opens a budget of the runtime; the compiled path opens one for
steps that it cannot plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class StandingBudget(Protocol):
    """A budget of the runtime that a thread enters for each step. Its tensors stay in it in between."""

    @property
    def run(self) -> Any:
        """Its figures, as of `with remint.budget(...) as run`."""

    def enter(self) -> None:
        """Let what this thread does from now on be inside the budget."""

    def leave(self) -> None:
        """Let what this thread does from now on be outside again."""

    def close(self) -> None:
        """End the budget. What the program still holds becomes ordinary."""


# Takes bytes, or None for a budget without a limit that only measures.
Opener = Callable[[int | None], StandingBudget]

_openers: list[Opener] = []


def register(opener: Opener) -> None:
    """Say what opens a budget."""
    _openers[:] = [opener]


def open_budget(budget_bytes: int | None) -> StandingBudget:
    """Open a budget that no thread is in yet; None is one without a limit."""
    return _openers[0](budget_bytes)
