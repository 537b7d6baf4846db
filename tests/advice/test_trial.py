"""A trial of a budget ends when its steps are learned, or at its limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remint.advice.trial import COUNTED_STEPS, GREEDY_STEPS, LEAST_STEPS, MOST_SECONDS, MOST_STEPS, TrialSteps
from remint.results.advice import Advice, Choice
from remint.results.learning import Learning, Phase

NOTHING = Phase(0, 0.0, 0.0, 0.0)


class Steps:
    """A trial, and the figures of its budget. Steps are greedy, learned, planned, departed, or free of evictions."""

    def __init__(self) -> None:
        self.trial = TrialSteps()
        self.learning = Learning(NOTHING, NOTHING, NOTHING, 0, "", 0, 0)
        self.over = False

    def run(self, kinds: str, seconds: float = 1.0, wall_seconds: float = 0.0) -> int:
        """Return how many of the steps were run before the trial was over."""
        for number, kind in enumerate(kinds):
            name = {"g": "greedy", "l": "learned", "p": "planned", "d": "learned"}.get(kind)
            if name:
                phase = getattr(self.learning, name)
                self.learning = replace(self.learning, **{name: replace(phase, num_steps=phase.num_steps + 1)})
            if kind == "d":
                self.learning = replace(self.learning, num_departures=self.learning.num_departures + 1)
            if self.trial.ended(seconds, wall_seconds, self.learning):
                return number + 1
        return len(kinds)


@pytest.mark.parametrize("kind", ["l", "p", "f"])
def test_slow_steps_before_it_is_learned_do_not_count(kind: str) -> None:
    steps = Steps()
    assert steps.run("gggdgg", seconds=70.0) == 6
    assert steps.run(kind * 20, seconds=3.0) == COUNTED_STEPS
    result = steps.trial.result(1000, 2.0)
    assert (result.slowdown, result.is_learned, result.num_steps) == (1.5, True, 6 + COUNTED_STEPS)


def test_a_departure_begins_anew() -> None:
    steps = Steps()
    assert steps.run("gg" + "lllld" * 3) == 17
    assert steps.run("l" * 20) == COUNTED_STEPS


def test_a_step_that_stays_greedy_is_not_waited_for() -> None:
    steps = Steps()
    assert steps.run("g" * 100) == GREEDY_STEPS
    assert steps.trial.result(1000, 1.0).is_learned


def test_the_limits_are_said() -> None:
    by_steps, by_seconds = Steps(), Steps()
    assert by_steps.run("gl" * 100) == MOST_STEPS
    assert by_seconds.run("gl" * 100, wall_seconds=MOST_SECONDS) == LEAST_STEPS
    for steps in (by_steps, by_seconds):
        trial = steps.trial.result(1000, 0.25)
        assert not trial.is_learned
        choice = Choice(budget_bytes=1000, greedy=2.0, learned=1.1)
        advice = Advice(
            subject="step", is_script=False, step_seconds=0.25, peak_bytes=2000, holders=(), outside=(),
            min_budget_bytes=500, min_budget_reason="", least=choice, choices=(), recommended=choice, accepted=1.1,
            trial=trial,
        )  # fmt: skip
        text = " ".join(str(advice).split())
        assert f"{trial.num_steps} steps were tried, and it still learns them: 4.0 times as slow so far" in text
