"""Tests of the CUDA backend on the fake runtime of this folder: `make cuda-check`. Elsewhere they are not collected."""

import os
import sys

import pytest

FAKE = "libfake_cuda" in os.environ.get("LD_PRELOAD", "")
collect_ignore_glob = [] if FAKE else ["test_*.py"]

_status = 0


def pytest_sessionfinish(exitstatus: int) -> None:
    global _status
    _status = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    # The streams of the fake runtime are threads that never end: PyTorch aborts when it takes its own down.
    if FAKE:
        sys.stdout.flush()
        os._exit(_status)
