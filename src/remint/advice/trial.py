"""A trial of a budget: runs steps in it until they are learned, and says how long they take from then on."""

from __future__ import annotations

import statistics

from remint.results.advice import Trial
from remint.results.learning import Learning

# Steps in a row that followed what was learned, or needed nothing: they are the ones that count.
COUNTED_STEPS = 5
# A step that the policy decided on so often in a row is not learned any more: no guide was better.
GREEDY_STEPS = 12
# A trial ends after so many steps, or after so many seconds if that is at least some steps.
MOST_STEPS = 40
MOST_SECONDS = 60.0
LEAST_STEPS = 8


class TrialSteps:
    """The steps of a trial so far."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._wall_seconds = 0.0
        self._before: Learning | None = None
        self._settled = 0
        self._greedy = 0

    def ended(self, seconds: float, wall_seconds: float, learning: Learning) -> bool:
        """Note a step, and what is learned at its end. Return whether the trial is over."""
        self._seconds.append(seconds)
        self._wall_seconds += wall_seconds
        before, self._before = self._before, learning
        if before is not None and learning.num_departures > before.num_departures:
            self._settled = self._greedy = 0
        elif before is None or learning.greedy.num_steps > before.greedy.num_steps:
            self._settled = 0
            self._greedy += 1
        else:
            self._settled += 1
            self._greedy = 0
        return self.is_learned or self._is_over

    @property
    def is_learned(self) -> bool:
        """Whether the next step will cost what the last ones did."""
        return self._settled >= COUNTED_STEPS or self._greedy >= GREEDY_STEPS

    @property
    def _is_over(self) -> bool:
        enough = len(self._seconds) >= LEAST_STEPS and self._wall_seconds >= MOST_SECONDS
        return enough or len(self._seconds) >= MOST_STEPS

    def result(self, budget_bytes: int, plain_seconds: float) -> Trial:
        """Return what came of it: the median of the last steps beside a plain step."""
        return Trial(
            budget_bytes=budget_bytes,
            num_steps=len(self._seconds),
            slowdown=statistics.median(self._seconds[-COUNTED_STEPS:]) / plain_seconds,
            is_learned=self.is_learned,
        )
