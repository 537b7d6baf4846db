"""Run a test in a process of its own, under a time limit.

A deadlock in native code cannot be interrupted from inside the process. Here it fails like any other test, and the
failure shows where every thread stood.
"""

from __future__ import annotations

import functools
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

_CHILD = """
import faulthandler, importlib, pickle, sys
faulthandler.enable()
path, module, name, kwargs = pickle.load(sys.stdin.buffer)
sys.path[:] = path
import torch
torch.set_num_threads(1)
getattr(importlib.import_module(module), name).__wrapped__(**kwargs)
"""


def isolated(seconds: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a test: run it in a new process that has to end by itself within `seconds`."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def wrapper(**kwargs: Any) -> None:
            job = pickle.dumps((sys.path, test.__module__, test.__name__, kwargs))
            # A process group of its own: the processes that a test starts end with it.
            process = subprocess.Popen(
                [sys.executable, "-c", _CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
            late = False
            try:
                output, _ = process.communicate(job, timeout=seconds)
            except subprocess.TimeoutExpired:
                late = True
                # Makes faulthandler print the stacks of all threads.
                process.send_signal(signal.SIGABRT)
                try:
                    output, _ = process.communicate(timeout=10)
                except subprocess.TimeoutExpired:
                    output = b""
            finally:
                if process.poll() is None or late:
                    _end_group(process)
            text = output.decode(errors="replace")
            if late:
                pytest.fail(f"not done after {seconds} s\n{text[-6000:]}", pytrace=False)
            if process.returncode != 0:
                pytest.fail(f"exit code {process.returncode}\n{text[-6000:]}", pytrace=False)
            print(text)

        return wrapper

    return decorate


def _end_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
