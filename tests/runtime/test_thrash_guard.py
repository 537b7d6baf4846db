"""A step that spends too long on rematerialization ends in an error that says what to do."""

import re

import pytest
import torch
from torch import nn

import remint
from remint.units import parse_budget

pytestmark = pytest.mark.runtime
# Seconds: what the guard waits for costs nothing here.
SLOW = [1.0] * 100_000


class Cells(nn.Module):
    """A chain of small cells: near its smallest budget every policy thrashes."""

    def __init__(self, length):
        super().__init__()
        self.cell = nn.LSTMCell(16, 16)
        self.length = length

    def forward(self, x):
        h, c = torch.zeros(64, 16), torch.zeros(64, 16)
        for _ in range(self.length):
            h, c = self.cell(x, (h, c))
        return h.square().sum()


def step(model, x, optimizer):
    optimizer.zero_grad()
    loss = model(x)
    loss.backward()
    optimizer.step()
    return loss.detach()


def make():
    torch.manual_seed(0)
    model = Cells(12)
    return model, torch.randn(64, 16), torch.optim.SGD(model.parameters(), 0.01)


def peak():
    with remint.budget("1GiB", learn=False) as run:
        step(*make())
    return run.peak_bytes


def test_a_step_that_takes_too_long_is_an_error():
    model, x, optimizer = make()
    with remint.budget(int(0.6 * peak()), policy="lru", costs=SLOW, max_slowdown=1.05, learn=False) as run:
        with pytest.raises(remint.BudgetError) as raised:
            step(model, x, optimizer)
        text = str(raised.value)
        assert "max_slowdown=1.05x" in text
        # It can be caught, and the budget goes on.
        assert torch.equal(x * 2, x + x)
        run._session.check()
    assert run.num_rematerializations > 0


def test_a_warning_comes_first():
    with (
        pytest.warns(UserWarning, match="slower so far"),
        remint.budget(int(0.6 * peak()), policy="lru", costs=SLOW, max_slowdown=1.3, learn=False),
    ):
        step(*make())


def test_without_a_limit_it_takes_as_long_as_it_takes():
    expected = step(*make())
    with remint.budget(int(0.6 * peak()), policy="lru", costs=SLOW, max_slowdown=None, learn=False) as run:
        found = step(*make())
    assert torch.equal(expected, found)
    assert run.slowdown > 1.05


def test_the_first_steps_may_take_longer():
    with remint.budget(int(0.6 * peak()), policy="lru", costs=SLOW, max_slowdown=1.05) as run:
        step(*make())
    assert run.slowdown > 1.05


def test_a_known_step_says_which_budget_would_do():
    def train(budget):
        model, x, optimizer = make()
        with remint.budget(budget, policy="lru", costs=SLOW, max_slowdown=1.13) as run:
            for number in range(8):
                if number == 6:
                    x * 2  # not what was learned: the policy decides on the rest of the step
                step(model, x, optimizer)
        return run

    with pytest.raises(remint.BudgetError, match="That is an estimate") as raised:
        train(int(0.6 * peak()))
    happened, why, advice = str(raised.value).splitlines()
    assert "max_slowdown=1.13x" in happened
    assert "recomputed again and again" in why
    found = re.search(r"Use a budget of about ([0-9.]+ [KM]iB)\.", advice)
    assert found
    assert parse_budget(found.group(1)) >= raised.value.known_budget_bytes
    assert train(found.group(1)).learning.num_departures > 0


def test_a_budget_in_which_steps_would_be_quick_enough():
    def train(budget):
        model, x, optimizer = make()
        with remint.budget(budget, policy="lru", costs=SLOW, max_slowdown=None, plan=False) as run:
            before = run.budget_for(1.05)
            for _ in range(6):
                step(model, x, optimizer)
            return run.slowdown, before, run.budget_for(1.05)

    small = int(0.6 * peak())
    slowdown, before, enough = train(small)
    assert slowdown > 1.05
    assert before is None, "no step was seen"
    assert enough is not None
    assert small < enough <= 1.25 * peak()
    assert train(enough)[0] <= 1.05
    with remint.budget(small, learn=False) as run:
        step(*make())
        assert run.budget_for(1.05) is None


@pytest.mark.parametrize("wrong", [1, 0.5, -3, float("nan")])
def test_wrong_limits(wrong):
    with pytest.raises(ValueError, match="max_slowdown is more than 1"):
        remint.budget("1MiB", max_slowdown=wrong)
