"""The process that runs HiGHS for solvers.py: programs come in, bounds and better points go out as they are found.

HiGHS looks at the clock only between its steps, and one step on a large program can take many times the time
given. A process can be ended on time.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

EVERY = 0.05  # seconds between two reports of the same kind


def main() -> None:
    """Solve one program after the other until there are no more."""
    import highspy

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(int(sys.argv[1]))
    connection.send(None)
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        connection.send(("end", _solve(highspy, connection, request)))


def _solve(highspy: Any, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    for option, value in request["options"].items():
        solver.setOptionValue(option, value)
    solver.passModel(_model(highspy, request))
    if request["start"] is not None:
        solution = highspy.HighsSolution()
        solution.col_value = request["start"].tolist()
        solver.setSolution(solution)
    told = {"bound": -math.inf, "at": 0.0}
    end = time.process_time() + request["seconds"]

    def improved(event: Any) -> None:
        out = event.data_out
        connection.send(("point", np.array(out.mip_solution), out.mip_primal_bound))

    def moved(event: Any) -> None:
        bound, now = event.data_out.mip_dual_bound, time.process_time()
        if now > end:
            event.interrupt()
        if math.isfinite(bound) and bound > told["bound"] and now > told["at"] + EVERY:
            told.update(bound=bound, at=now)
            connection.send(("bound", bound))

    if request["integer"] is not None:
        solver.cbMipImprovingSolution += improved
        solver.cbMipInterrupt += moved
    solver.run()
    status, info = solver.getModelStatus(), solver.getInfo()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    return {
        "infeasible": status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible),
        "optimal": status == highspy.HighsModelStatus.kOptimal,
        "point": np.array(solver.getSolution().col_value) if found else None,
        "cost": info.objective_function_value if found else math.inf,
        "bound": info.mip_dual_bound,
    }


def _model(highspy: Any, request: dict[str, Any]) -> Any:
    model = highspy.HighsLp()
    columns, rows = len(request["cost"]), len(request["row_lower"])
    model.num_col_, model.num_row_ = columns, rows
    model.col_cost_ = request["cost"]
    model.col_lower_, model.col_upper_ = np.zeros(columns), np.ones(columns)
    model.row_lower_, model.row_upper_ = request["row_lower"], request["row_upper"]
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = request["row_start"]
    model.a_matrix_.index_ = request["index"]
    model.a_matrix_.value_ = request["coefficient"]
    if request["integer"] is not None:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        model.integrality_ = [kinds[i] for i in request["integer"]]
    return model


if __name__ == "__main__":
    main()
