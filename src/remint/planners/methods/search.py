"""`search`: simulated annealing on native code; the workhorse for large graphs.

After FastSA (Fast simulated annealing for rematerialization, 2023): anneal, and make the simulation of a move
cheap. We depart in what is moved: not the compute sequence but per-use decisions (csrc/planner/schedule_state.h), from
which what must be rematerialized follows, so that every state is a valid schedule and a value can go and come
back several times; in the start, which is the schedule of demand.py; in crossing the budget at a price; and in
copying what one layer does to its twins.
"""

from __future__ import annotations

import math

from remint.planners.contract import Outcome, Task
from remint.planners.local_search import START_SECONDS_PER_OP, finish, run, start
from remint.planners.methods.demand import first_schedule

MOVES_PER_OP, MOST_MOVES = 20_000, 4_000_000


def search(task: Task) -> Outcome:
    """Anneal for a number of moves that grows with the graph, or until the deadline."""
    first = first_schedule(task)
    cost = math.fsum(map(task.numbered.cost.__getitem__, first)) if first is not None else math.inf
    engine = None
    try:
        if first is not None:
            task.report("search", cost)
        if first is not None and task.left() < START_SECONDS_PER_OP * len(task.graph.ops):
            return Outcome(first)
        engine = start(task, first)
        run(task, engine, min(MOST_MOVES, MOVES_PER_OP * len(task.graph.ops)))
    except KeyboardInterrupt:
        if first is None and (engine is None or not engine.feasible):
            raise
    if first is not None and (engine is None or not engine.best_cost < cost):
        return Outcome(first)
    assert engine is not None
    return finish(task, engine)
