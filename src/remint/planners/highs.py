"""HiGHS, which solves linear and mixed-integer programs: a call that ends on time and says what it knows.

It runs in a process of its own (highs_worker.py), which is kept for the next program and ended when it does
not answer in time; what it reported until then counts.
"""

from __future__ import annotations

import atexit
import importlib.util
import math
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from remint.planners.program import Program

GRACE = 0.25  # seconds for a worker to notice that its time is up


@dataclass(frozen=True)
class Solution:
    """What a solve gave: a point (if any), its cost, a proven bound, and whether no point exists."""

    point: np.ndarray | None
    cost: float
    bound: float
    infeasible: bool = False
    interrupted: bool = False  # by Ctrl-C


def available() -> bool:
    """Whether HiGHS is installed."""
    return importlib.util.find_spec("highspy") is not None


def solve(
    program: Program,
    *,
    relaxed: bool,
    seconds: float,
    start: np.ndarray | None = None,
    tolerance: float = 0.0,
    on_progress: Callable[[float, float], None] | None = None,
    seed: int = 0,
) -> Solution:
    """Solve a program, or its linear relaxation, to within `tolerance`; costs leave out first runs.

    `on_progress` is told the cost of the best point and the bound.
    """
    if not available():
        raise ValueError('this planner needs HiGHS: pip install "remint[plan]"')
    if not program.feasible:
        return Solution(None, math.inf, math.inf, infeasible=True)
    deadline = time.monotonic() + seconds
    scale = 1.0 / max(max(program.cost, default=1.0), 1e-300)
    request = _request(program, scale, relaxed)
    request["start"] = None if relaxed else start
    request["options"] = {
        "threads": 1,
        "random_seed": seed,
        "mip_rel_gap": 1e-9,
        "mip_abs_gap": tolerance * scale,
    }
    best: dict[str, Any] = {"point": None, "cost": math.inf, "bound": 0.0}
    worker = _Worker.take()
    interrupted = False
    try:
        worker.wait_until_ready()
        request["options"]["time_limit"] = max(0.01, deadline - time.monotonic())
        worker.connection.send(request)
        for message in worker.messages(deadline + GRACE):
            if message[0] == "point":
                best.update(point=message[1], cost=message[2])
            elif message[0] == "bound":
                best["bound"] = max(best["bound"], message[1])
            else:
                return _ended(message[1], best, scale, relaxed)
            if on_progress is not None:
                on_progress(best["cost"] / scale, best["bound"] / scale)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        worker.give_back()
    return Solution(best["point"], best["cost"] / scale, best["bound"] / scale, interrupted=interrupted)


def _ended(end: dict[str, Any], best: dict[str, Any], scale: float, relaxed: bool) -> Solution:
    if end["infeasible"]:
        return Solution(None, math.inf, math.inf, infeasible=True)
    point, cost = end["point"], end["cost"] / scale
    if relaxed:
        return Solution(point, cost, cost) if end["optimal"] else Solution(None, math.inf, 0.0)
    bound = max(end["bound"], best["bound"]) if math.isfinite(end["bound"]) else best["bound"]
    return Solution(point, cost, max(0.0, bound / scale))


def _request(program: Program, scale: float, relaxed: bool) -> dict[str, Any]:
    lower, upper = np.array(program.row_lower), np.array(program.row_upper)
    coefficient = np.array(program.coefficient, dtype=float)
    starts = np.array(program.row_start)
    # Memory rows are in bytes: scale each row to a largest coefficient of 1.
    if len(coefficient):
        rows = len(lower)
        row_of = np.repeat(np.arange(rows), np.diff(starts))
        largest = np.ones(rows)
        np.maximum.at(largest, row_of, np.abs(coefficient))
        coefficient = coefficient / largest[row_of]
        lower, upper = lower / largest, upper / largest
    return {
        "cost": np.array(program.cost) * scale,
        "row_lower": lower,
        "row_upper": upper,
        "row_start": starts,
        "index": np.array(program.index),
        "coefficient": coefficient,
        "integer": None if relaxed else program.integer,
    }


class _Worker:
    idle: list[_Worker] = []  # noqa: RUF012 - shared on purpose

    def __init__(self) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("highs_worker.py")), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self.ready = False
        self.busy = False

    @classmethod
    def take(cls) -> _Worker:
        """Return a worker that has nothing to do."""
        while cls.idle:
            worker = cls.idle.pop()
            if worker.process.poll() is None:
                return worker
        return cls()

    def wait_until_ready(self) -> None:
        """Wait for the interpreter to start, the first time."""
        if not self.ready:
            try:
                self.connection.recv()
            except EOFError:
                raise RuntimeError("the process that runs HiGHS did not start: see its messages above") from None
            self.ready = True
        self.busy = True

    def messages(self, deadline: float) -> Any:
        """Yield what the worker sends, until the deadline or its end."""
        while self.connection.poll(max(0.0, deadline - time.monotonic())):
            try:
                message = self.connection.recv()
            except EOFError:
                return
            if message[0] == "end":
                self.busy = False
            yield message

    def give_back(self) -> None:
        """Keep the worker for the next program, or end it if it is still at work."""
        if self.ready and not self.busy:
            _Worker.idle.append(self)
        else:
            self.end()

    def end(self) -> None:
        """End the process."""
        self.connection.close()
        self.process.kill()
        self.process.wait()


@atexit.register
def _end_idle_workers() -> None:
    while _Worker.idle:
        _Worker.idle.pop().end()
