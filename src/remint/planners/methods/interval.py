"""`interval`: retention intervals with constraint programming.

Bartan et al., MOCCASIN: Efficient Tensor Rematerialization for Neural Networks, ICML 2023. Each op runs at
most C times, and each run begins an interval during which its values are retained; memory is one cumulative
constraint. OR-Tools' CP-SAT solves it in a process of its own (interval_worker.py), since it cannot share one
with HiGHS. We depart in the start: the paper's first phase minimises the peak to find a hint, ours takes the
hint from the local search; and in C, which grows from 2 when a plan needs more. No bound is reported: what is
proven for C runs is not proven for more.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from remint.graph import Plan
from remint.planners.contract import Infeasible, Outcome, Task
from remint.planners.cpu_clock import charge, cpu_seconds
from remint.planners.decisions import stages_of
from remint.planners.local_search import finish, run, start
from remint.planners.methods.demand import first_schedule

HINT_MOVES, HINT_PART = 60_000, 0.25
MOST_RUNS = 4
MOST_OPS = 1000
GRACE = 0.2  # seconds for the worker to end by itself


def interval(task: Task) -> Outcome:
    """Find a hint by local search, and let CP-SAT better it until the deadline."""
    graph, numbered = task.graph, task.numbered
    if importlib.util.find_spec("ortools") is None:
        raise ValueError('this planner needs OR-Tools: pip install "remint[plan]"')
    if len(graph.ops) > MOST_OPS:
        raise Infeasible(f"the model of {len(graph.ops)} ops is too large (over {MOST_OPS}): use search or auto")
    if not graph.ops:
        return Outcome(())
    hint: tuple[int, ...] | None = None
    least: tuple[int, ...] = ()
    searching = replace(task, deadline=min(task.deadline, cpu_seconds() + HINT_PART * task.left()))
    engine = start(searching, first_schedule(task))
    try:
        run(searching, engine, HINT_MOVES)
        hint = finish(task, engine).sequence
    except KeyboardInterrupt:
        if not engine.feasible:
            raise
        return finish(task, engine)
    except Infeasible as failure:
        least = failure.least
    runs = min(MOST_RUNS, max(2, *Counter(hint or least or range(2)).values()))
    best = Plan.from_sequence(graph, hint) if hint is not None else None
    while task.left() > 0.5:
        request = {
            "cost": numbered.cost,
            "inputs": numbered.inputs,
            "outputs": numbered.outputs,
            "nbytes": numbered.nbytes,
            "results": numbered.results,
            "again": [op.rematerializable for op in graph.ops],
            "space": task.budget - graph.constant_bytes,
            "runs": runs,
            "seconds": task.left(),
            "seed": task.seed,
            "hint": stages_of(numbered, best.sequence if best is not None else least) if best or least else None,
        }
        solutions = _solve(request)
        for sequence in solutions.sequences:
            plan = Plan.from_sequence(graph, sequence)
            if plan.peak_bytes <= task.budget and (best is None or plan.cost < best.cost):
                best = plan
                task.report("interval", plan.cost)
        if best is not None or not solutions.ended or runs == MOST_RUNS:
            break
        runs += 1
    if best is None:
        raise Infeasible(f"no schedule with {runs} runs per op was found in the time given", least)
    return Outcome(best.sequence)


@dataclass
class _Solutions:
    sequences: list[list[int]] = field(default_factory=list)
    ended: bool = False  # by a proof, not by the clock


def _solve(request: dict[str, object]) -> _Solutions:
    """Run the worker and collect its solutions."""
    worker = subprocess.Popen(
        [sys.executable, str(Path(__file__).parents[1] / "solvers" / "interval_worker.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = _Solutions()
    began = time.monotonic()
    # It reports what it finds as it finds it: nothing is lost when it is ended on time.
    clock = threading.Timer(float(request["seconds"]) + GRACE, worker.kill)  # type: ignore[arg-type]
    clock.start()
    try:
        assert worker.stdin is not None
        assert worker.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            worker.stdin.write(json.dumps(request))
            worker.stdin.close()
        for line in worker.stdout:
            try:
                answer = json.loads(line)
            except json.JSONDecodeError:  # half a line: it was ended while it wrote
                break
            found.ended = answer["ended"]
            if answer["sequence"] is not None:
                found.sequences.append(answer["sequence"])
    except KeyboardInterrupt:
        if not found.sequences:
            raise
    finally:
        clock.cancel()
        worker.kill()
        worker.wait()
        charge(time.monotonic() - began)
    return found
