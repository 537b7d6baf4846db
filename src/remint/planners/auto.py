"""`auto`: a portfolio. Quick plans first, then local search, then proofs that feed the search, as far as time
goes.

Search and proof take turns. Search finds good schedules; the refined program (refine.py) proves how good they
are, and its solutions, which often break the budget slightly, are where the search starts next. It stops at a
gap of 0.1%.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from remint._core import Search
from remint.plan import Plan
from remint.planners import highs
from remint.planners.base import Infeasible, Outcome, Planner, Task
from remint.planners.baselines import drop, keep
from remint.planners.chain import chain
from remint.planners.chen import chen_greedy, chen_greedy_ap, chen_sqrt
from remint.planners.decisions import sequence_of_decisions, staged
from remint.planners.dtr import dtr
from remint.planners.griewank import griewank, griewank_ap
from remint.planners.refine import refine
from remint.planners.search import run, start

GAP = 1e-3
ROUND = 60_000
# Where the clock binds, the first search gets this part of the time, and each later turn that one.
FIRST_PART, TURN_PART = 0.2, 0.1
QUICK: tuple[Planner, ...] = (keep, chen_sqrt, chen_greedy, chen_greedy_ap, dtr)
LAST: tuple[Planner, ...] = (dtr, drop, griewank, griewank_ap, chain)
MOST_OPS_FOR_LAST = 3000
MOST_OPS_FOR_QUICK = 1500
MOST_OPS_FOR_PROOF = 8000


@dataclass
class _Best:
    task: Task
    sequence: tuple[int, ...] | None = None
    cost: float = math.inf
    bound: float = 0.0
    least: tuple[int, ...] = ()
    least_peak: float = math.inf
    proven_infeasible: bool = False

    def offer(self, sequence: tuple[int, ...]) -> None:
        plan = Plan.from_sequence(self.task.graph, sequence)
        if plan.peak_bytes < self.least_peak:
            self.least, self.least_peak = sequence, plan.peak_bytes
        if plan.peak_bytes <= self.task.budget and plan.cost < self.cost:
            self.sequence, self.cost = sequence, plan.cost
            self.task.report("auto", self.cost, self.bound)

    def raise_bound(self, bound: float) -> None:
        if bound > self.bound:
            self.bound = bound
            self.task.report("auto", self.cost if self.sequence is not None else None, bound)

    def done(self) -> bool:
        return self.sequence is not None and self.cost <= self.bound * (1 + GAP)


def auto(task: Task) -> Outcome:
    """Return the best plan of all with the best bound."""
    best = _Best(task, bound=task.graph.cost)
    try:
        _portfolio(task, best)
    except KeyboardInterrupt:
        if best.sequence is None:
            raise
    if best.sequence is None:
        raise Infeasible("no schedule inside the budget was found", best.least, proven=best.proven_infeasible)
    return Outcome(best.sequence, best.bound)


def _portfolio(task: Task, best: _Best) -> None:
    if task.hint is not None:
        best.offer(task.hint)
    large = len(task.graph.ops) > MOST_OPS_FOR_QUICK
    for planner in QUICK[:1] if large else QUICK:
        try:
            best.offer(planner(task).sequence)
        except Infeasible as failure:
            if failure.least:
                best.offer(failure.least)
        if best.done():
            return
    hint = best.sequence if best.sequence is not None else best.least
    engine = start(replace(task, hint=tuple(staged(task.problem, hint)) if hint else None))
    if engine.feasible:
        best.offer(tuple(sequence_of_decisions(task.problem, engine.best)))
    moves = ROUND + 600 * len(task.graph.ops)
    try:
        _take_turns(task, best, engine, moves)
    finally:
        if engine.feasible and engine.best_cost < best.cost:
            best.offer(tuple(sequence_of_decisions(task.problem, engine.best)))
    # What any baseline can do, auto can.
    for planner in LAST if best.sequence is None and len(task.graph.ops) <= MOST_OPS_FOR_LAST else ():
        try:
            best.offer(planner(task).sequence)
        except Infeasible as failure:
            if failure.least:
                best.offer(failure.least)


def _turn(task: Task, part: float) -> Task:
    """The same task with its deadline after a part of the time that was given for all."""
    given = task.deadline - task.started
    return replace(task, deadline=min(task.deadline, time.monotonic() + part * given))


def _take_turns(task: Task, best: _Best, engine: Search, moves: int) -> None:
    run(_turn(task, FIRST_PART), engine, moves, target=best.bound * (1 + GAP))
    if engine.feasible:
        best.offer(tuple(sequence_of_decisions(task.problem, engine.best)))
    else:
        best.offer(tuple(sequence_of_decisions(task.problem, engine.least)))
    if highs.available() and len(task.graph.ops) <= MOST_OPS_FOR_PROOF:
        prover = start(task)
        known = tuple(staged(task.problem, best.sequence)) if best.sequence is not None else None
        for step in refine(task, prover, known, GAP):
            if step.infeasible:
                best.proven_infeasible = True
                return
            best.raise_bound(step.bound)
            if step.decisions:
                if step.excess <= 0:
                    best.offer(tuple(sequence_of_decisions(task.problem, step.decisions)))
                if best.done():
                    return
                engine.start(step.decisions)
                run(_turn(task, TURN_PART), engine, moves, target=best.bound * (1 + GAP), bound=best.bound)
                if engine.feasible:
                    best.offer(tuple(sequence_of_decisions(task.problem, engine.best)))
            if best.done():
                return
    while task.left() > 0 and not best.done() and engine.moves < 200 * moves:
        run(task, engine, moves, target=best.bound * (1 + GAP), bound=best.bound)
        if engine.feasible and engine.best_cost < best.cost:
            best.offer(tuple(sequence_of_decisions(task.problem, engine.best)))
