"""HiGHS, which solves linear and mixed-integer programs: a call that stops on time and says what it knows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from remint.planners.program import Program


@dataclass(frozen=True)
class Solution:
    """What a solve gave: a point (if any), its cost, a proven bound, and whether no point exists."""

    point: np.ndarray | None
    cost: float
    bound: float
    infeasible: bool = False
    interrupted: bool = False


def available() -> bool:
    """Whether HiGHS can be imported here."""
    try:
        import highspy  # noqa: F401
    except ImportError:
        return False
    return True


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
    """Solve a program, or its linear relaxation, to within `tolerance`; costs leave out first runs."""
    try:
        import highspy
    except ImportError:
        raise ValueError('this planner needs HiGHS: pip install "remint[plan]"') from None
    if not program.feasible:
        return Solution(None, math.inf, math.inf, infeasible=True)
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("random_seed", seed)
    solver.setOptionValue("time_limit", max(0.01, seconds))
    scale = 1.0 / max(max(program.cost, default=1.0), 1e-300)
    solver.setOptionValue("mip_rel_gap", 1e-9)
    solver.setOptionValue("mip_abs_gap", tolerance * scale)
    solver.passModel(_model(program, scale, relaxed))
    if start is not None and not relaxed:
        solution = highspy.HighsSolution()
        solution.col_value = start.tolist()
        solver.setSolution(solution)
    best = {"bound": 0.0}

    def interrupt(event: Any) -> None:
        info = event.data_out
        if math.isfinite(info.mip_dual_bound):
            best["bound"] = max(best["bound"], info.mip_dual_bound)
        if on_progress is not None:
            on_progress(info.mip_primal_bound / scale, info.mip_dual_bound / scale)

    if not relaxed and on_progress is not None:
        solver.cbMipImprovingSolution += interrupt
        solver.cbMipInterrupt += interrupt
    interrupted = False
    solver.HandleKeyboardInterrupt = True
    try:
        solver.solve()
    except KeyboardInterrupt:
        interrupted = True
    status = solver.getModelStatus()
    info = solver.getInfo()
    if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
        return Solution(None, math.inf, math.inf, infeasible=True)
    has_point = info.primal_solution_status == 2
    point = np.array(solver.getSolution().col_value) if has_point else None
    cost = info.objective_function_value / scale if has_point else math.inf
    if relaxed:
        proven = status == highspy.HighsModelStatus.kOptimal
        return Solution(point if proven else None, cost, cost if proven else 0.0, interrupted=interrupted)
    bound = info.mip_dual_bound if math.isfinite(info.mip_dual_bound) else best["bound"]
    return Solution(point, cost, max(0.0, bound / scale), interrupted=interrupted)


def _model(program: Program, scale: float, relaxed: bool) -> Any:
    import highspy

    model = highspy.HighsLp()
    columns, rows = len(program.cost), len(program.row_lower)
    model.num_col_, model.num_row_ = columns, rows
    model.col_cost_ = np.array(program.cost) * scale
    model.col_lower_ = np.zeros(columns)
    model.col_upper_ = np.ones(columns)
    lower, upper = np.array(program.row_lower), np.array(program.row_upper)
    coefficient = np.array(program.coefficient, dtype=float)
    starts = np.array(program.row_start)
    # Memory rows are in bytes: scale each row to a largest coefficient of 1.
    if len(coefficient):
        sizes = np.diff(starts)
        row_of = np.repeat(np.arange(rows), sizes)
        largest = np.ones(rows)
        np.maximum.at(largest, row_of, np.abs(coefficient))
        coefficient = coefficient / largest[row_of]
        lower, upper = lower / largest, upper / largest
    model.row_lower_, model.row_upper_ = lower, upper
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = starts
    model.a_matrix_.index_ = np.array(program.index)
    model.a_matrix_.value_ = coefficient
    if not relaxed:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        model.integrality_ = [kinds[i] for i in program.integer]
    return model
