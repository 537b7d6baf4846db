"""`search`: simulated annealing on native code; the workhorse for large graphs.

After FastSA (Fast simulated annealing for rematerialization, 2023): anneal, and make the simulation of a move
cheap. We depart in what is moved: not the compute sequence but per-use decisions (csrc/search_state.h), from
which what must be rematerialized follows, so that every state is a valid schedule and a value can go and come
back several times; in the start, which is the schedule of demand.py; in crossing the budget at a price; and in
copying what one layer does to its twins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from remint._core import Search
from remint.graph.numbered import Problem
from remint.planners.contract import Infeasible, Outcome, Task
from remint.planners.decisions import (
    Decision,
    decisions_of_sequence,
    drop_unless,
    sequence_of_decisions,
    staged,
)
from remint.planners.methods.demand import first_schedule
from remint.planners.repeated_layers import twins

SLICE = 4000
START_SECONDS_PER_OP = 5e-5  # without that time an engine would begin too late
MOVES_PER_OP, MOST_MOVES = 20_000, 4_000_000


def search(task: Task) -> Outcome:
    """Anneal for a number of moves that grows with the graph, or until the deadline."""
    first = first_schedule(task)
    cost = math.fsum(map(task.problem.cost.__getitem__, first)) if first is not None else math.inf
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


def start(task: Task, first: Sequence[int] | None = None) -> Search:
    """Return an engine that stands at the best of the schedules that are quickly made.

    `first` and the task's hint are among them; either may leave the class, and then begins from its stages.
    """
    problem = task.problem
    engine = Search(problem.native, float(task.budget), task.seed, twins(problem))
    best = (engine.excess, engine.cost, list[Decision]())

    def consider(decisions: list[Decision]) -> None:
        nonlocal best
        engine.start(decisions)
        best = min(best, (engine.excess, engine.cost, decisions), key=lambda rank: rank[:2])

    for sequence in (first, task.hint):
        if sequence is not None:
            consider(decisions_of_sequence(problem, staged(sequence)))
    if not engine.feasible:
        for decisions in quick_starts(problem):
            consider(decisions)
            if task.left() == 0:
                break
    engine.start(best[2])
    return engine


def quick_starts(problem: Problem) -> list[list[Decision]]:
    """Return schedules that keep every k-th forward op's values, for a few k, and nothing else."""
    forward = range(problem.turn)
    steps = sorted({max(1, round(problem.turn ** (e / 8))) for e in range(2, 9)})
    return [drop_unless(problem, (v for i in forward if i % k == 0 for v in problem.outputs[i])) for k in steps]


def run(task: Task, engine: Search, moves: int, *, target: float = -math.inf, bound: float | None = None) -> None:
    """Make moves in slices, so that the deadline and Ctrl-C are met in between; stop at cost `target`."""
    end = engine.moves + moves
    told = math.inf
    piece = max(100, min(SLICE, SLICE * 1000 // max(1, len(task.graph.ops))))
    while True:
        if engine.feasible and engine.best_cost < told:
            told = engine.best_cost
            task.report("search", told, bound)
        if (engine.feasible and engine.best_cost <= target) or engine.moves >= end or task.left() == 0:
            return
        engine.run(min(piece, end - engine.moves))


def finish(task: Task, engine: Search) -> Outcome:
    """Return the best schedule the engine has met."""
    if not engine.feasible:
        raise Infeasible(
            "local search met no schedule inside the budget",
            sequence_of_decisions(task.problem, engine.least),
        )
    return Outcome(tuple(sequence_of_decisions(task.problem, engine.best)))


def tidy(task: Task, sequence: Sequence[int]) -> list[int]:
    """Take back drops, the dearest first, wherever the value can as well stay inside the budget."""
    problem = task.problem
    engine = Search(problem.native, float(task.budget), 0, [])
    decisions = decisions_of_sequence(problem, sequence)
    engine.start(decisions)
    if engine.excess > 0:
        return list(sequence)
    cost, best = engine.cost, list(sequence)
    for decision in sorted((d for d in decisions if d[0]), key=lambda d: -problem.cost[problem.maker[d[1]]]):
        if task.left() == 0:
            break
        fewer = [d for d in decisions if d != decision]
        engine.start(fewer)
        if engine.excess <= 0 and engine.cost <= cost:
            decisions, cost, best = fewer, engine.cost, engine.sequence
    return best
