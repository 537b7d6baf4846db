"""Profiles of Hypothesis, and which tests `make quick` runs.

Hypothesis tries the same examples every time, without deadlines: machines are noisy. The quick profile tries a tenth.
"""

import atexit
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The tests' tensors are small, and the machines busy: threads that wait for each other cost more than they bring.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Plans that earlier runs kept on disk would change what a test sees. Workers of pytest-xdist share the folder.
if "REMINT_TEST_CACHE" not in os.environ:
    folder = tempfile.TemporaryDirectory(prefix="remint-tests-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    os.environ["REMINT_TEST_CACHE"] = os.environ["XDG_CACHE_HOME"] = folder.name

settings.register_profile("default", deadline=None, derandomize=True)
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=10)
settings.load_profile("default")

# The tests of the torch-free parts: all of them are part of `make quick`, unless they are marked slow.
TORCH_FREE = {"architecture", "cli", "engine", "graph", "planners", "results", "simulator", "trace"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--everything", action="store_true", help="every model, policy, budget, sample: an hour")
    parser.addoption("--accelerator", action="store_true", help="the tests on the test device, and only those")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        folder = Path(item.path).relative_to(item.config.rootpath).parts[:-1]
        if folder[:1] == ("tests",) and (len(folder) == 1 or folder[1] in TORCH_FREE):
            item.add_marker("smoke")
        if folder == ("src", "remint", "testing"):
            item.add_marker("accelerator")
    # A process that has loaded the test device has an accelerator from then on: other tests never see it.
    chosen = config.getoption("accelerator")
    other = [item for item in items if bool(item.get_closest_marker("accelerator")) != chosen]
    config.hook.pytest_deselected(items=other)
    items[:] = [item for item in items if item not in set(other)]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Any]:
    """Two connected processes."""
    from tests.support.ranks import Ranks

    pair = Ranks()
    yield pair
    pair.close()


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[Any]:
    """Four connected processes."""
    from tests.support.ranks import Ranks

    four = Ranks(4)
    yield four
    four.close()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what tests counted with `record_property`, from all processes."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            if report.user_properties:
                counts = ", ".join(f"{count} {name}" for name, count in report.user_properties)
                terminalreporter.write_line(f"{report.nodeid.rpartition('/')[2]}: {counts}")
