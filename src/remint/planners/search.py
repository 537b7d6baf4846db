"""`search`: simulated annealing on native code; the workhorse for large graphs.

After FastSA (Fast simulated annealing for rematerialization, 2023): anneal, and make the simulation of a move
cheap. We depart in what is moved: not the compute sequence but per-use decisions (csrc/search_state.h), from
which what must be rematerialized follows, so that every state is a valid schedule and a value can go and come
back several times; in crossing the budget at a price; and in copying what one layer does to its twins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from remint._core import Search
from remint.planners.base import Infeasible, Outcome, Problem, Task
from remint.planners.decisions import (
    Decision,
    decisions_of_sequence,
    drop_unless,
    is_staged,
    sequence_of_decisions,
)
from remint.planners.layers import twins

SLICE = 4000
MOVES_PER_OP = 20000
LEAST_MOVES = 30_000


def search(task: Task) -> Outcome:
    """Anneal for a number of moves that grows with the graph, or until the deadline."""
    engine = start(task)
    moves = min(4_000_000, MOVES_PER_OP * max(20, len(task.graph.ops)))
    try:
        run(task, engine, moves)
    except KeyboardInterrupt:
        if not engine.feasible:
            raise
    return finish(task, engine)


def start(task: Task) -> Search:
    """Return an engine that has seen the quick schedules and stands at the best of them."""
    problem = task.problem
    engine = Search(problem.native, float(task.budget), task.seed, twins(problem))
    starts = [[], *quick_starts(problem)]
    if task.hint is not None and is_staged(task.hint):
        starts.append(decisions_of_sequence(problem, task.hint))
    best: tuple[float, float, list[Decision]] | None = None
    for decisions in starts:
        engine.start(decisions)
        rank = (engine.excess, engine.cost, decisions)
        if best is None or rank[:2] < best[:2]:
            best = rank
        if task.left() == 0:
            break
    assert best is not None
    engine.start(best[2])
    return engine


def least_peak(task: Task) -> tuple[int, ...]:
    """Return the schedule of least peak that a short search meets."""
    problem = task.problem
    if not problem.cost:
        return ()
    engine = start(replace(task, budget=task.graph.min_budget_bytes, deadline=math.inf, hint=None))
    engine.run(LEAST_MOVES)
    return tuple(sequence_of_decisions(problem, engine.least))


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
