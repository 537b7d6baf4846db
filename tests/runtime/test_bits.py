"""Losses, gradients, buffers, parameters and optimizer state are the same bits with and without a budget."""

import functools
import itertools

import pytest

from tests.support.models import CASES, TRANSFORMERS
from tests.support.training import Outcome, assert_same_bits, train

ALL = CASES | TRANSFORMERS


def smoke(name: str):
    """The case is part of `make quick`."""
    return pytest.param(name, marks=pytest.mark.smoke)


def case(name: str):
    if name in TRANSFORMERS:
        pytest.importorskip("transformers")
    return ALL[name]


@functools.cache
def plain(name: str, optimizer: str) -> Outcome:
    return train(case(name), optimizer=optimizer)


@functools.cache
def peak(name: str, optimizer: str) -> int:
    found = train(case(name), optimizer=optimizer, budget="1GiB", check=True)
    assert_same_bits(plain(name, optimizer), found)
    assert found.run.num_rematerializations == 0
    return found.run.peak_bytes


@pytest.mark.parametrize("name", ALL)
def test_without_pressure(name):
    assert peak(name, "adam") > 0


USUALLY = [("coop", "adam", 70), ("coop", "adam", 50), ("coop", "sgd", 35), ("dtr-eq", "sgd", 50)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "percent" in metafunc.fixturenames:
        cells = USUALLY
        if metafunc.config.getoption("everything"):
            cells = list(itertools.product(["coop", "dtr-eq"], ["adam", "sgd"], [70, 50, 35]))
        metafunc.parametrize(("policy", "optimizer", "percent"), cells)


@pytest.mark.parametrize("name", ALL)
def test_under_pressure(name, policy, optimizer, percent):
    budget = peak(name, optimizer) * percent // 100
    found = train(case(name), optimizer=optimizer, budget=budget, policy=policy)
    assert_same_bits(plain(name, optimizer), found)
    assert found.run.peak_bytes <= budget
    assert found.run.num_rematerializations > 0


@pytest.mark.parametrize("optimizer", [smoke("adam-foreach"), "adam-fused", "adamw"])
def test_optimizers_that_write_many_tensors_at_once(optimizer):
    budget = peak("resnet", "adam") // 2
    found = train(case("resnet"), optimizer=optimizer, budget=budget)
    assert_same_bits(plain("resnet", optimizer), found)
    assert found.run.num_rematerializations > 0


@pytest.mark.parametrize("name", [smoke("mlp"), smoke("lstm"), "transformer", "gpt2_sdpa"])
def test_chaos(name):
    found = train(case(name), optimizer="adam", steps=1, budget="1GiB", chaos=True)
    assert_same_bits(train(case(name), optimizer="adam", steps=1), found)
    assert found.run.num_rematerializations > 0
