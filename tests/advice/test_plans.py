"""Plans of budgets that are not open yet: they only ever make a choice faster, and the program would follow them."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

from remint import _core, generators
from remint.advice import plans
from remint.planners.step_planning import Question, read_question, write_question
from remint.results.advice import Choice
from remint.simulator.budget_choices import MeasuredSteps, choice
from remint.trace import Trace


def steps_of(trace: Trace) -> MeasuredSteps:
    return MeasuredSteps(trace=trace, num_steps=1, plain_seconds=trace.seconds, recorded_seconds=trace.seconds)


def test_a_question_is_read_as_it_was_written() -> None:
    trace = generators.unet(3)
    asked = Question(trace=trace, budget=trace.peak_bytes // 2, alignment=64, seconds=1.5, step_hash=7)
    found = read_question(write_question(asked))
    assert (found.budget, found.alignment, found.seconds, found.step_hash) == (asked.budget, 64, 1.5, 7)
    for name in ("kinds", "nanoseconds", "args", "effects", "nbytes", "aliases", "request_bytes", "held"):
        assert np.array_equal(getattr(found.trace, name), getattr(trace, name)), name


def test_plans_make_choices_faster(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    pytest.importorskip("torch")  # the front of the runtime, which says how the process is started
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(plans, "MOST_SECONDS", 600.0)  # whatever else the machine does
    steps = steps_of(generators.chain(40))
    before = [choice(steps, steps.peak_bytes * percent // 100) for percent in (100, 50, 25)]
    after = plans.with_plans(steps, before)
    assert set(after) == {each.budget_bytes for each in before}
    for each in before:
        planned = after[each.budget_bytes]
        assert each.learned is not None
        assert planned.learned is not None
        assert planned.learned <= each.learned
        assert planned.greedy == each.greedy
    assert after[before[0].budget_bytes] is before[0], "what loses nothing is not planned"
    assert any(after[each.budget_bytes].learned < each.learned for each in before[1:])


@pytest.mark.parametrize("answer", [b"", b"not a plan", subprocess.TimeoutExpired("plan", 1), OSError("no")])
def test_without_a_plan_a_choice_stays_as_it_is(answer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    steps = steps_of(generators.chain(20))
    before = choice(steps, steps.peak_bytes // 2)

    def run(*_: object, **__: object) -> subprocess.CompletedProcess[bytes]:
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, bytes)
        return subprocess.CompletedProcess([], 0, answer)

    monkeypatch.setattr(subprocess, "run", run)
    assert plans.with_plans(steps, [before]) == {before.budget_bytes: before}


def test_steps_that_differ_are_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    steps = MeasuredSteps(trace=generators.chain(20), num_steps=7, plain_seconds=1.0, recorded_seconds=1.0)
    assert steps.last is None
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a process was started"))
    slow = Choice(budget_bytes=1 << 20, greedy=3.0, learned=2.0)
    assert plans.with_plans(steps, [slow]) == {slow.budget_bytes: slow}


def test_the_figures_are_those_of_the_core() -> None:
    """The alignment of blocks is asked of the core by default: both sides mean the same."""
    trace = generators.chain(20)
    both = [
        _core.simulate_step(trace, budget=trace.peak_bytes // 2, **more)
        for more in ({}, {"alignment": _core.CPU_ALIGNMENT})
    ]
    assert both[0] == both[1]
