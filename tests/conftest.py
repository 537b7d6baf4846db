"""Hypothesis: the same examples every time, no deadlines on noisy machines, fewer where a slow build runs again."""

import os

import pytest
from hypothesis import settings

# The tests' tensors are small, and the machines busy: threads that wait for each other cost more than they bring.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("default", deadline=None, derandomize=True)
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=10)
settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--everything", action="store_true", help="every model, policy, budget, sample: an hour")
