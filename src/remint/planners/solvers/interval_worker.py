"""The process that runs CP-SAT for interval.py: a request on standard input, solutions on standard output, as
JSON.

Time is counted in slots: stage t has one slot per op up to t, as in MOCCASIN, so that op i of stage t runs in
slot t (t + 1) / 2 + i and every interval has whole numbers for ends.
"""

from __future__ import annotations

import json
import sys
from typing import Any

WHOLE = 10_000


def slot(stage: int, op: int) -> int:
    """The slot in which `op` runs if it runs in `stage`."""
    return stage * (stage + 1) // 2 + op


def main() -> None:
    """Read one request, write each better solution as it is found."""
    from ortools.sat.python import cp_model

    request: dict[str, Any] = json.load(sys.stdin)
    n, runs = len(request["cost"]), request["runs"]
    model = cp_model.CpModel()
    end = slot(n, n)
    largest = max(request["cost"]) or 1.0
    hint = request["hint"]
    hinted: list[list[int]] = [[] for _ in range(n)]
    if hint is not None:
        for t, again in enumerate(hint):
            for i in (*again, t):
                if i < n:
                    hinted[i].append(t)

    start: dict[tuple[int, int], Any] = {}
    active: dict[tuple[int, int], Any] = {}
    objective = []
    for i in range(n):
        start[i, 0] = model.new_constant(slot(i, i))
        active[i, 0] = model.new_constant(1)
        domain = cp_model.Domain.from_values([slot(t, i) for t in range(i + 1, n + 1)])
        for c in range(1, runs if request["again"][i] else 1):
            start[i, c] = model.new_int_var_from_domain(domain, f"s{i}.{c}")
            active[i, c] = model.new_bool_var(f"a{i}.{c}")
            objective.append((round(request["cost"][i] / largest * WHOLE), active[i, c]))
            # Runs of one op come in order, those that are not needed last.
            model.add_implication(active[i, c], active[i, c - 1])
            model.add(start[i, c] >= start[i, c - 1] + 1).only_enforce_if(active[i, c])
            if hint is not None:
                model.add_hint(active[i, c], c < len(hinted[i]))
                if c < len(hinted[i]):
                    model.add_hint(start[i, c], slot(hinted[i][c], i))

    # Each value is retained from the run that makes it to the last run that reads it.
    last: dict[tuple[int, int], Any] = {}
    intervals, demands = [], []
    readers = {v for reads in request["inputs"] for v in reads} | set(request["results"])
    for i in range(n):
        for v in request["outputs"][i]:
            for c in range(runs):
                if (i, c) not in start:
                    continue
                if v in readers:
                    last[v, c] = model.new_int_var(0, end, f"e{v}.{c}")
                    model.add(last[v, c] >= start[i, c])
                else:
                    last[v, c] = start[i, c]
                size = model.new_int_var(1, end + 1, "")
                model.add(size == last[v, c] - start[i, c] + 1)
                intervals.append(model.new_optional_interval_var(start[i, c], size, last[v, c] + 1, active[i, c], ""))
                demands.append(request["nbytes"][v])
                if (i, c + 1) in start:
                    model.add(last[v, c] < start[i, c + 1]).only_enforce_if(active[i, c + 1])
    model.add_cumulative(intervals, demands, request["space"])

    def served(v: int, maker: int, at: Any, when: Any) -> None:
        choices = []
        for c in range(runs):
            if (maker, c) in start:
                choice = model.new_bool_var("")
                model.add_implication(choice, active[maker, c])
                model.add(start[maker, c] < at).only_enforce_if(choice)
                model.add(last[v, c] >= at).only_enforce_if(choice)
                choices.append(choice)
        model.add_bool_or(choices).only_enforce_if(when)

    made_by = {v: i for i in range(n) for v in request["outputs"][i]}
    for (i, c), at in start.items():
        for v in request["inputs"][i]:
            served(v, made_by[v], at, active[i, c])
    for v in request["results"]:
        served(v, made_by[v], model.new_constant(end), model.new_constant(1))
    model.minimize(sum(weight * a for weight, a in objective))

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = request["seed"]
    solver.parameters.max_time_in_seconds = max(0.1, request["seconds"])

    def tell(value: Any, ended: bool) -> None:
        runs_at = sorted((value(at), i) for (i, c), at in start.items() if value(active[i, c]))
        print(json.dumps({"sequence": [i for _, i in runs_at], "ended": ended}), flush=True)

    class Teller(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            tell(self.value, False)

    status = solver.solve(model, Teller())
    if status == cp_model.OPTIMAL:
        tell(solver.value, True)
    elif status == cp_model.INFEASIBLE:
        print(json.dumps({"sequence": None, "ended": True}), flush=True)


if __name__ == "__main__":
    main()
