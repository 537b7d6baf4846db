"""Run a test in another process, under a time limit.

A deadlock in native code cannot be interrupted from inside the process. Here it fails like any other test, and the
failure shows where every thread stood. A process is used by many tests, since importing torch takes seconds. A test
that fails ends its process, and the next test gets a new one. The limit does not count the start of the process.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pytest

LATE = "not done in time"
Job = tuple[str, str, dict[str, Any]]


def _serve(connection: Connection, path: list[str], output: str, prepare: Callable[[], None] | None) -> None:
    """Call the functions that are sent, one after the other, until there is nothing more to do."""
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable()
    sys.path[:] = path
    # A group of its own: the processes that a test starts end with it.
    os.setpgid(0, 0)
    import torch

    torch.set_num_threads(1)
    if prepare is not None:
        prepare()
    connection.send(None)
    while (job := connection.recv()) is not None:
        module, name, kwargs = job
        test = getattr(importlib.import_module(module), name)
        try:
            getattr(test, "__wrapped__", test)(**kwargs)
        except BaseException:
            connection.send(traceback.format_exc())
        else:
            connection.send(None)
        sys.stdout.flush()


class Worker:
    """One process. `prepare` runs in it before the first test."""

    def __init__(self, prepare: Callable[[], None] | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, there = context.Pipe()
        with tempfile.NamedTemporaryFile(delete=False) as file:
            self._output = file.name
        args = (there, sys.path, self._output, prepare)
        self._process = context.Process(target=_serve, args=args, daemon=False)
        self._process.start()
        there.close()
        self._ready = False

    def send(self, job: Job) -> None:
        if not self._ready:
            if not self._connection.poll(300):
                raise RuntimeError(f"the process did not start: {self.end(signal.SIGABRT)}")
            self._connection.recv()
            self._ready = True
        self._connection.send(job)

    def result(self, end: float) -> str | None:
        """Return what went wrong, or None."""
        if not self._connection.poll(max(0.0, end - time.monotonic())):
            return LATE
        try:
            problem: str | None = self._connection.recv()
        except (EOFError, ConnectionError):
            return "the process ended"
        return problem

    def end(self, first: signal.Signals) -> str:
        """End the process; return what it printed. SIGABRT makes it print the stacks of its threads."""
        if self._process.is_alive() and self._process.pid is not None:
            os.kill(self._process.pid, first)
            self._process.join(15)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.join()
        with open(self._output, errors="replace") as file:
            text = file.read()
        os.unlink(self._output)
        return text


_worker: Worker | None = None


@atexit.register
def _close() -> None:
    if _worker is not None:
        _worker.end(signal.SIGKILL)


def isolated(seconds: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a test: it runs in another process and has to end by itself within `seconds`."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def wrapper(**kwargs: Any) -> None:
            global _worker
            if _worker is None:
                _worker = Worker()
            _worker.send((test.__module__, test.__name__, kwargs))
            problem = _worker.result(time.monotonic() + seconds)
            if problem is None:
                return
            output, _worker = _worker.end(signal.SIGABRT if problem == LATE else signal.SIGKILL), None
            pytest.fail(f"{problem}\n{output[-6000:]}", pytrace=False)

        return wrapper

    return decorate
