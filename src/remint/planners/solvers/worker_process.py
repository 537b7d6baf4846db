"""Processes that solve programs: kept for the next one, and ended when they do not answer in time.

Time is CPU time. Solvers look at the clock only between their steps, and one step on a large program can take many
times the time given. A process can be ended on time, and what it reported until then counts. HiGHS and OR-Tools cannot
share one either.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from remint.planners.cpu_clock import charge

GRACE = 0.25  # seconds for a worker to notice that its time is up
LOOK_EVERY = 0.02  # seconds between two looks at its CPU time


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
        self.started = time.monotonic()
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

    def wait_until_ready(self) -> None:
        """Wait for the interpreter to start, the first time."""
        if not self.ready:
            try:
                self.connection.recv()
            except EOFError:
                raise RuntimeError(f"{self.script} did not start: see its messages above") from None
            self.ready = True

    def computed(self) -> float:
        """Seconds of CPU time of the process so far; where the system does not say, seconds since the start."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return time.monotonic() - self.started

    def messages(self, request: dict[str, Any], seconds: float) -> Iterator[tuple[Any, ...]]:
        """Send a request and yield what comes back, until ("end", ...), or until the process computed too long.

        What it computes is charged to the thread that waits (cpu_clock.py).
        """
        self.busy = True
        charged = began = self.computed()
        self.connection.send(request)
        try:
            while True:
                if not self.connection.poll(LOOK_EVERY):
                    if self.computed() - began > seconds + GRACE:
                        return
                    continue
                try:
                    message = self.connection.recv()
                except EOFError:
                    return
                self.busy = message[0] != "end"
                yield message
                if not self.busy:
                    return
        finally:
            charge(max(0.0, self.computed() - charged))

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
