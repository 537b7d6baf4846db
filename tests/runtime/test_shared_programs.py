"""Random programs with threads, user ops that write, several outputs and inner budgets give the same bits."""

import contextlib
import warnings

import pytest
import torch
from hypothesis import given, seed, settings, strategies

import remint
from tests.support.isolated import isolated
from tests.support.shared_programs import IN_THREAD, MAKE, WRITE, Program, programs, same

# Costs do not come from the clock: the same example does the same every time.
COSTS = [1e-6] * 10_000
EXAMPLES = 100
PLAIN = contextlib.nullcontext


def constants():
    torch.manual_seed(1)
    return [torch.randn(9, 9), torch.randn(25, requires_grad=True)]


def check(test, seed_, **arguments):
    """Try `test` on random examples. The same seed gives the same ones."""
    given_ = given(**arguments)(test)
    seed(seed_)(settings(deadline=None, max_examples=EXAMPLES, database=None)(given_))()


def assert_same(expected, found):
    assert len(expected) == len(found), (expected, found)
    for place, (a, b) in enumerate(zip(expected, found, strict=True)):
        assert same(a, b), (place, a, b)


def chaos(program):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = Program(constants(), PLAIN).run(program)
        outside = constants()
        with remint.budget("64MiB", chaos=True, check=True, costs=COSTS) as run:
            inner = lambda: remint.budget("64MiB", chaos=True, check=True, costs=COSTS)  # noqa: E731
            found = Program(outside, inner).run(program)
    assert run.peak_bytes <= run.budget_bytes
    assert_same(expected, found)


def nearly_too_small(program, policy, blocks):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = Program(constants(), PLAIN).run(program)
        outside = constants()
        try:
            with remint.budget(64 * blocks, policy=policy, check=True, costs=COSTS) as run:
                inner = lambda: remint.budget(64 * blocks, policy=policy, check=True, costs=COSTS)  # noqa: E731
                found = Program(outside, inner).run(program)
        except remint.BudgetError:
            return
    assert run.peak_bytes <= run.budget_bytes
    assert_same(expected, found)


@isolated(240)
def run_chaos(seed_):
    check(chaos, seed_, program=programs)


@isolated(240)
def run_nearly_too_small(seed_):
    policies = strategies.sampled_from(["coop", "dtr-eq", "lru", "e-star"])
    check(nearly_too_small, seed_, program=programs, policy=policies, blocks=strategies.integers(20, 160))


@pytest.mark.parametrize("run", [run_chaos, run_nearly_too_small])
def test_random_programs(run, request):
    for seed_ in range(50 if request.config.getoption("everything") else 2):
        run(seed_=seed_)


@isolated(60)
def test_each_step_alone():
    """Every step that is new, in the program's thread and in another one, on values that were computed and evicted."""
    for name in (*MAKE, *WRITE):
        for b in (0, 1, 2):
            chaos([("tanh", 0, 0), ("clone", 0, 0), ("add", 5, 1), (name, 5, 4 + b), ("tanh", 6, 0), (name, 4, 6)])
    for place in range(len(IN_THREAD)):
        a, b = divmod(place, 64)
        chaos([("tanh", 0, 0), ("add", 4, 1), ("thread", a, b), ("thread", a + 4, b), ("open budget", 0, 0)])
        chaos([("tanh", 0, 0), ("open budget", 0, 0), ("add", 4, 1), ("thread", a, b), ("close budget", 0, 0)])
