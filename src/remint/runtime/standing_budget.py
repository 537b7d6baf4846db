"""A budget that a thread enters and leaves many times: for the steps of a compiled model that has no plan."""

from __future__ import annotations

import os

from remint.runtime.budget import budget
from remint.runtime.live_run import LiveRun


class StandingBudget:
    """A budget that stays open while no thread is inside: its tensors stay in its arena, and it forgets nothing."""

    def __init__(self, budget_bytes: int | None) -> None:
        if budget_bytes is None:
            # All memory of the machine. Unused pages cost nothing.
            budget_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._budget = budget(budget_bytes)
        # A thread that sleeps cannot leave and come back asleep.
        (self._session,), self._run = self._budget._open_sessions(sleep=False)
        self._closed = False

    @property
    def run(self) -> LiveRun:
        """Its figures."""
        return self._run

    def enter(self) -> None:
        """Let what this thread does from now on be inside the budget."""
        self._session.enter()

    def leave(self) -> None:
        """Let what this thread does from now on be outside again."""
        self._session.leave()

    def close(self) -> None:
        """End the budget. What the program still holds becomes ordinary. To close it twice does nothing."""
        if not self._closed:
            self._closed = True
            self.leave()
            self._budget._close_sessions([self._session])
