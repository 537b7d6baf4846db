"""Processes that solve programs: kept for the next one, and ended when they do not answer in time.

Solvers look at the clock only between their steps, and one step on a large program can take many times the
time given. A process can be ended on time, and what it reported until then counts. HiGHS and OR-Tools cannot
share one either.
"""

from __future__ import annotations

import atexit
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GRACE = 0.25  # seconds for a worker to notice that its time is up


class Worker:
    """A process that runs one of the scripts beside this file: a request goes in, messages come out."""

    _idle: dict[str, list[Worker]] = {}  # noqa: RUF012 - shared on purpose

    def __init__(self, script: str) -> None:
        self.script = script
        self.connection, theirs = multiprocessing.Pipe()
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(script)), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self.ready = False
        self.busy = False

    @classmethod
    def take(cls, script: str) -> Worker:
        """Return a worker that has nothing to do."""
        idle = cls._idle.setdefault(script, [])
        while idle:
            worker = idle.pop()
            if worker.process.poll() is None:
                return worker
        return cls(script)

    def wait_until_ready(self, deadline: float) -> bool:
        """Wait for the interpreter to start, the first time; return whether it did until the deadline."""
        if not self.ready:
            if not self.connection.poll(max(0.0, deadline - time.monotonic())):
                return False
            try:
                self.connection.recv()
            except EOFError:
                raise RuntimeError(f"{self.script} did not start: see its messages above") from None
            self.ready = True
        return True

    def messages(self, request: dict[str, Any], deadline: float) -> Iterator[tuple[Any, ...]]:
        """Send a request and yield what comes back, until ("end", ...), or some time after the deadline."""
        self.busy = True
        self.connection.send(request)
        while self.connection.poll(max(0.0, deadline + GRACE - time.monotonic())):
            try:
                message = self.connection.recv()
            except EOFError:
                return
            self.busy = message[0] != "end"
            yield message
            if not self.busy:
                return

    def give_back(self) -> None:
        """Keep the worker for the next request, or end it if it is still at work."""
        if self.ready and not self.busy:
            self._idle[self.script].append(self)
        else:
            self.end()

    def end(self) -> None:
        """End the process."""
        self.connection.close()
        self.process.kill()
        self.process.wait()

    @classmethod
    def end_all(cls) -> None:
        """End what nobody needs any more."""
        for idle in cls._idle.values():
            while idle:
                idle.pop().end()


atexit.register(Worker.end_all)
