"""Looks at the steps of a program one after the other: plain, recorded, recorded with lines, both timed, in a budget.

The program says where its steps end. What happens between is up to the watch: it opens and closes recordings and
budgets at these points, and raises nothing of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from remint.advice.live_tensors import live_tensors
from remint.advice.trial import TrialSteps
from remint.errors import BudgetError
from remint.results.advice import Trial
from remint.results.holders import Holder
from remint.runtime.budget import budget
from remint.runtime.recording import record
from remint.trace import Trace

LINED_STEPS = 2
# Short steps are timed more often, as far as the program has them: at most so many, and so many seconds.
TIMED_STEPS = 8
TIMED_SECONDS = 0.5


class Watch:
    """What was seen of the steps so far. `done` says that it is enough."""

    def __init__(self, *, steps: int, try_budget: Callable[[Watch], int | None]) -> None:
        """Time and record `steps` steps, not counting the first. `try_budget` chooses what to try, None for nothing."""
        self.num_steps = steps
        self.done = False
        self.seen_steps = 0
        self.plain_seconds = self.recorded_seconds = 0.0
        self.trace: Trace
        self.lined_trace: Trace
        self.live: tuple[Holder, ...] = ()
        self.trial: Trial | None = None
        self._try_budget = try_budget
        self._phase = self._plain
        self._seconds: list[float] = []
        self._open: AbstractContextManager[Any] | None = None
        self._opened: Any = None
        self._fastest_recorded = 0.0
        self._trial_bytes = 0
        self._trial_steps = TrialSteps()
        # The CPU time of this thread leaves out what others on the machine take. With several threads it would also
        # leave out the time in which this one waits for the others.
        self._clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
        self._wall_began = time.perf_counter()
        self._began = self._clock()

    def step_ended(self) -> None:
        """Go on to what is to be done in the next step."""
        self._seconds.append(self._clock() - self._began)
        self.seen_steps += 1
        self._wall_seconds = time.perf_counter() - self._wall_began
        self._phase()
        self._wall_began = time.perf_counter()
        self._began = self._clock()

    def close(self, error: BaseException | None = None) -> None:
        """Close what is open: no more steps follow."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
        if self._trial_bytes and self.trial is None and isinstance(error, BudgetError):
            self.trial = Trial(budget_bytes=self._trial_bytes, num_steps=len(self._seconds) + 1, slowdown=None)

    @property
    def bookkeeping_seconds(self) -> float:
        """What watching takes for one op."""
        return (self.recorded_seconds - self.plain_seconds) * self.num_steps / max(1, self.trace.num_ops)

    @property
    def recorded(self) -> bool:
        """Whether enough was seen for an answer."""
        return hasattr(self, "lined_trace")

    def _enter(self, context: AbstractContextManager[Any], then: Callable[[], None]) -> None:
        self._seconds.clear()
        self._phase = then
        self._opened = context.__enter__()
        self._open = context

    def _plain(self) -> None:
        # The first step is longer: it fills caches, and makes the state of optimizers.
        if len(self._seconds) <= self.num_steps:
            return
        self.plain_seconds = min(self._seconds[1:])
        self.live = live_tensors()
        self._enter(record(), self._recorded)

    def _recorded(self) -> None:
        if len(self._seconds) < self.num_steps:
            return
        recording = self._opened
        self.close()
        self._fastest_recorded = min(self._seconds[1:] or self._seconds)
        self._note_recorded()
        self.trace = recording.trace
        self._enter(record(source_lines=True), self._lined)

    @property
    def _timed_enough(self) -> bool:
        # The first step after a change is not like the others.
        timed = self._seconds[1:]
        return len(timed) >= TIMED_STEPS or (len(timed) >= 2 and sum(timed) >= TIMED_SECONDS)

    def _note_recorded(self) -> None:
        """Note how long a watched step takes: no less than a plain one, although others on the machine disturb both."""
        self.recorded_seconds = max(self.plain_seconds, self._fastest_recorded)

    def _lined(self) -> None:
        if len(self._seconds) < LINED_STEPS:
            return
        recording = self._opened
        self.close()
        self.lined_trace = recording.trace
        self._enter(record(), self._timed_recorded)

    def _timed_recorded(self) -> None:
        if not self._timed_enough:
            return
        self.close()
        self._fastest_recorded = min(self._fastest_recorded, *self._seconds[1:])
        self._seconds.clear()
        self._phase = self._timed_plain

    def _timed_plain(self) -> None:
        if not self._timed_enough:
            return
        self.plain_seconds = min(self.plain_seconds, *self._seconds[1:])
        self._note_recorded()
        nbytes = self._try_budget(self)
        if nbytes is None:
            self.done = True
            return
        self._trial_bytes = nbytes
        self._enter(budget(nbytes), self._tried)

    def _tried(self) -> None:
        if not self._trial_steps.ended(self._seconds[-1], self._wall_seconds, self._opened.learning):
            return
        self.close()
        self.trial = self._trial_steps.result(self._trial_bytes, self.plain_seconds)
        self.done = True
