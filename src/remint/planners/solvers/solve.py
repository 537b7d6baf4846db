"""HiGHS and CP-SAT, which solve programs: calls that end on time and say what they know.

Both run in processes of their own (worker_process.py, highs_worker.py, cpsat_worker.py).
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from remint.planners.solvers.integer_program import IntegerProgram
from remint.planners.solvers.worker_process import Worker

WHOLE = 1_000_000  # the largest cost, as CP-SAT counts


@dataclass(frozen=True)
class Solution:
    """What a solve gave: a point (if any), its cost, a proven bound, and whether no point exists."""

    point: np.ndarray | None
    cost: float
    bound: float
    infeasible: bool = False
    interrupted: bool = False  # by Ctrl-C


def has_highs() -> bool:
    """Whether HiGHS is installed."""
    return importlib.util.find_spec("highspy") is not None


def solve(
    program: IntegerProgram,
    *,
    relaxed: bool,
    seconds: float,
    start: np.ndarray | None = None,
    tolerance: float = 0.0,
    on_progress: Callable[[float, float], None] | None = None,
    seed: int = 0,
    nodes: int | None = None,
) -> Solution:
    """Solve a program, or its linear relaxation, to within `tolerance`; costs leave out first runs.

    `seconds` are of CPU time. `nodes` limits the branching, too. `on_progress` is told the cost of the best point and
    the bound.
    """
    if not has_highs():
        raise ValueError('this planner needs HiGHS: pip install "remint[plan]"')
    if not program.feasible:
        return Solution(None, math.inf, math.inf, infeasible=True)
    scale = 1.0 / max(max(program.cost, default=1.0), 1e-300)
    request = _request(program, scale, relaxed)
    request["start"] = None if relaxed else start
    request["options"] = {
        "threads": 1,
        "random_seed": seed,
        "mip_rel_gap": 1e-9,
        "mip_abs_gap": tolerance * scale,
    }
    if nodes is not None:
        request["options"]["mip_max_nodes"] = nodes
    request["seconds"] = seconds
    best: dict[str, Any] = {"point": None, "cost": math.inf, "bound": 0.0}
    worker = Worker.take("highs_worker.py")
    interrupted = False
    try:
        worker.wait_until_ready()
        for message in worker.messages(request, seconds):
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


def solve_by_clauses(program: IntegerProgram, *, seconds: float, effort: float = math.inf) -> Solution:
    """Solve a program without inner stages by CP-SAT: all its columns are 0 or 1, and few rows count bytes.

    Where the budget is so tight that single values decide, the linear relaxation says little, and learning
    from conflicts more. Costs are rounded down to whole numbers, so that the bound holds. `effort` is CP-SAT's
    deterministic time, which ends it at the same place every time.
    """
    if program.inner or importlib.util.find_spec("ortools") is None or not program.feasible:
        return Solution(None, math.inf, 0.0)
    unit = max(max(program.cost, default=0.0), 1e-300) / WHOLE
    request = {
        "cost": [math.floor(c / unit) for c in program.cost],
        "row_start": program.row_start,
        "index": program.index,
        "coefficient": [int(c) for c in program.coefficient],
        "row_lower": program.row_lower,
        "row_upper": program.row_upper,
        "seconds": seconds,
        "effort": effort,
    }
    worker = Worker.take("cpsat_worker.py")
    try:
        worker.wait_until_ready()
        for _, end in worker.messages(request, seconds):
            if end["infeasible"]:
                return Solution(None, math.inf, math.inf, infeasible=True)
            point = None if end["point"] is None else np.array(end["point"], dtype=float)
            cost = math.inf if point is None else float(np.dot(point, program.cost))
            return Solution(point, cost, max(0.0, end["bound"] * unit))
    except KeyboardInterrupt:
        return Solution(None, math.inf, 0.0, interrupted=True)
    finally:
        worker.give_back()
    return Solution(None, math.inf, 0.0)


def _ended(end: dict[str, Any], best: dict[str, Any], scale: float, relaxed: bool) -> Solution:
    if end["infeasible"]:
        return Solution(None, math.inf, math.inf, infeasible=True)
    point, cost = end["point"], end["cost"] / scale
    if relaxed:
        return Solution(point, cost, cost) if end["optimal"] else Solution(None, math.inf, 0.0)
    bound = max(end["bound"], best["bound"]) if math.isfinite(end["bound"]) else best["bound"]
    return Solution(point, cost, max(0.0, bound / scale))


def _request(program: IntegerProgram, scale: float, relaxed: bool) -> dict[str, Any]:
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
