"""What a budget costs, by simulation: as the runtime would learn the step."""

from __future__ import annotations

import pytest

from remint import _core
from remint.generators import chain
from remint.simulator.budget_choices import MeasuredSteps, choice


def test_limits_become_smaller_and_the_budget_comes_first() -> None:
    limits = _core.shrunk_budgets(100 << 20)
    assert limits[0] == 100 << 20
    assert limits == sorted(set(limits), reverse=True)
    assert limits[-1] > 80 << 20


def test_the_limits_of_the_core_are_tried_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = chain(30)
    steps = MeasuredSteps(trace=trace, num_steps=1, plain_seconds=1.0, recorded_seconds=1.0)
    tried: list[int] = []

    def no_place(_trace: object, *, budget: int, arena_bytes: int) -> dict[str, object]:
        tried.append(budget)
        assert budget <= arena_bytes
        return {"followed": None}

    monkeypatch.setattr(_core, "simulate_step", no_place)
    found = choice(steps, trace.peak_bytes // 2)
    assert found.greedy is not None
    assert tried == _core.shrunk_budgets(tried[0])
