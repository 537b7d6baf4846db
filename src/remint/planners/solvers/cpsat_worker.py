"""The process that runs CP-SAT for solvers.py: one program after the other, 0 or 1 per column."""

from __future__ import annotations

import math
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any


def main() -> None:
    """Solve one program after the other until there are no more."""
    from ortools.sat.python import cp_model

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(int(sys.argv[1]))
    connection.send(None)
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        connection.send(("end", _solve(cp_model, request)))


def _solve(cp_model: Any, request: dict[str, Any]) -> dict[str, Any]:
    model = cp_model.CpModel()
    columns = [model.new_bool_var("") for _ in request["cost"]]
    starts = request["row_start"]
    for row, (lower, upper) in enumerate(zip(request["row_lower"], request["row_upper"], strict=True)):
        part = slice(starts[row], starts[row + 1])
        entries = list(zip(request["index"][part], request["coefficient"][part], strict=True))
        negative = sum(c < 0 for _, c in entries)
        if upper == math.inf and lower == 1 - negative and all(abs(c) == 1 for _, c in entries):
            model.add_bool_or([columns[i] if c > 0 else ~columns[i] for i, c in entries])
            continue
        total = sum(c * columns[i] for i, c in entries)
        if lower > -math.inf:
            model.add(total >= math.ceil(lower))
        if upper < math.inf:
            model.add(total <= math.floor(upper))
    model.minimize(sum(c * x for c, x in zip(request["cost"], columns, strict=True)))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    # Its process is ended when it has computed for too long.
    if request["effort"] < math.inf:
        solver.parameters.max_deterministic_time = request["effort"]
    status = solver.solve(model)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return {
        "infeasible": status == cp_model.INFEASIBLE,
        "point": [solver.value(x) for x in columns] if found else None,
        "bound": solver.best_objective_bound if found else 0.0,
    }


if __name__ == "__main__":
    main()
