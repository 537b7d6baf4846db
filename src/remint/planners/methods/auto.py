"""`auto`: a portfolio. Quick plans first, then local search, then proofs that feed the search, as far as time
goes.

Search and proof take turns. Search finds good schedules. On small graphs segments of the best one are made cheaper
(segments.py), and the search over sets of values (watching.py) finds the cheapest one of all. On all graphs, the
refined program (refinement.py) proves how good schedules are. What they find often breaks the budget slightly, and is
where the local search starts next. It stops at a gap of 0.1%.

No turn depends on the time limit: with more time there are more turns, after the same ones. So more time gives no
worse plan, as far as solvers do the same twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from remint._core import Search
from remint.graph import Plan
from remint.graph.steps import with_consumed
from remint.planners.contract import Infeasible, Outcome, Planner, Task
from remint.planners.cut_bound import best_cut
from remint.planners.decisions import Decision, decisions_of_sequence, sequence_of_decisions, staged
from remint.planners.local_search import START_SECONDS_PER_OP, run, start
from remint.planners.methods.chain import chain
from remint.planners.methods.chen import chen_greedy, chen_greedy_ap, chen_sqrt
from remint.planners.methods.demand import SECONDS_FOR_LEAST, demand, least_peak
from remint.planners.methods.dtr import dtr
from remint.planners.methods.griewank import griewank, griewank_ap
from remint.planners.methods.keep_and_drop import drop, keep
from remint.planners.refinement import Refinement, refine
from remint.planners.segments import Segments
from remint.planners.solvers.solve import has_highs
from remint.planners.watching import MOST_OPS, Watched, watch

GAP = 1e-3
# Moves of a turn of the local search.
ROUND, ROUND_PER_OP = 60_000, 2000
MORE_PER_OP, MOST_MORE = 600, 240_000
# States of a turn of the search over sets; each turn has more.
STATES, STATES_GROWTH = 200_000, 1.5
# The same for cheaper segments: a state takes a tenth of the time.
SEGMENT_STATES, SEGMENT_STATES_GROWTH = 250_000, 2.0
QUICK: tuple[Planner, ...] = (chen_sqrt, chen_greedy, chen_greedy_ap, dtr)
LAST: tuple[Planner, ...] = (dtr, drop, griewank, griewank_ap, chain)
MOST_OPS_FOR_LAST = 3000
MOST_OPS_FOR_QUICK = 1500
MOST_OPS_FOR_PROOF = 8000


_Turn = Callable[[list[Decision] | None], None]


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
        numbered = self.task.numbered
        try:
            sequence = with_consumed(self.task.graph, sequence)
        except ValueError:
            return
        peak = numbered.least_memory.peak(sequence)
        cost = math.fsum(map(numbered.cost.__getitem__, sequence))
        if peak < self.least_peak:
            self.least, self.least_peak = sequence, peak
        if peak <= self.task.budget and cost < self.cost:
            self.sequence, self.cost = sequence, cost
            self.task.report("auto", self.cost, self.bound)

    def offer_from(self, engine: Search) -> None:
        if engine.feasible and not engine.best_cost < self.cost:
            return
        decisions = engine.best if engine.feasible else engine.least
        self.offer(tuple(sequence_of_decisions(self.task.numbered, decisions)))

    def offer_all(self, planners: Iterable[Planner]) -> None:
        for planner in planners:
            if self.done():
                return
            try:
                self.offer(planner(self.task).sequence)
            except Infeasible as failure:
                if failure.least:
                    self.offer(failure.least)

    def raise_bound(self, bound: float) -> None:
        if bound > self.bound:
            self.bound = bound
            self.task.report("auto", self.cost if self.sequence is not None else None, bound)

    def done(self) -> bool:
        return self.proven_infeasible or (self.sequence is not None and self.cost <= self.bound * (1 + GAP))


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
    best.offer_all((demand, keep))
    if best.sequence is None or (len(task.graph.ops) <= MOST_OPS and not best.done()):
        # What is told to be the smallest budget with a known plan must have one; and that plan fits here, too.
        least = best.sequence or best.least or range(len(task.graph.ops))
        known = least_peak(task, Plan.from_sequence(task.graph, least), SECONDS_FOR_LEAST)
        best.offer(known.sequence)
    bound, dropped = best_cut(task.relaxed)
    if math.isinf(bound):
        best.proven_infeasible = True
        return
    best.raise_bound(bound)
    if len(task.graph.ops) <= MOST_OPS_FOR_QUICK:
        best.offer_all(QUICK)
    if best.done() or (best.sequence is not None and task.left() < START_SECONDS_PER_OP * len(task.graph.ops)):
        return
    engine = start(task, best.sequence or best.least)
    try:
        best.offer_from(engine)
        _take_turns(task, best, engine, dropped)
    finally:
        best.offer_from(engine)
    # What any baseline can do, auto can.
    if best.sequence is None and len(task.graph.ops) <= MOST_OPS_FOR_LAST:
        best.offer_all(LAST)


def _take_turns(task: Task, best: _Best, engine: Search, dropped: list[Decision]) -> None:
    n = len(task.graph.ops)
    moves = min(ROUND, ROUND_PER_OP * n) + min(MORE_PER_OP * n, MOST_MORE)

    def take_turn(start: list[Decision] | None = None) -> None:
        if start is not None:
            engine.start(start)
        run(task, engine, moves, target=best.bound * (1 + GAP), bound=best.bound)
        best.offer_from(engine)

    take_turn()
    segments, segment_states = Segments(task.relaxed), float(SEGMENT_STATES)
    _shorten(task, best, segments, segment_states)
    if dropped and n <= MOST_OPS_FOR_PROOF and not best.done():
        take_turn(dropped)
    sets = watch(task.relaxed, lambda: best.cost / (1 + GAP))
    programs: Iterator[Refinement] = iter(())
    if has_highs() and n <= MOST_OPS_FOR_PROOF and not best.done():
        programs = refine(task.relaxed, staged(best.sequence) if best.sequence is not None else None, GAP)
    states, more_sets, more_programs = float(STATES), True, True
    while (more_sets or more_programs) and task.left() > 0 and not best.done():
        if more_sets:
            more_sets = _watch(task, best, sets, states, take_turn)
            states *= STATES_GROWTH
        segment_states *= SEGMENT_STATES_GROWTH
        _shorten(task, best, segments, segment_states)
        if more_programs and not best.done():
            more_programs = _prove(task, best, programs, take_turn)
    while task.left() > 0 and not best.done() and engine.moves < 200 * moves:
        take_turn()
        _shorten(task, best, segments, segment_states)


def _shorten(task: Task, best: _Best, segments: Segments, states: float) -> None:
    """Make segments of the best schedule cheaper, for that many states."""
    if best.sequence is not None:
        segments.begin(best.sequence)
    while states > 0 and task.left() > 0 and not best.done():
        step = segments.look_at_next()
        if step is None:
            return
        states -= step.states
        if step.sequence is not None:
            best.offer(step.sequence)


def _watch(task: Task, best: _Best, sets: Iterator[Watched], states: float, take_turn: _Turn) -> bool:
    """Search over sets of values for that many states; return whether there is more to search."""
    start: list[Decision] | None = None
    for step in sets:
        if step.infeasible:
            best.proven_infeasible = True
            return False
        best.raise_bound(step.bound)
        if step.sequence is not None:
            # What breaks the budget is no known plan of a larger one: nobody would find it there.
            if task.numbered.least_memory.peak(step.sequence) <= task.budget:
                best.offer(step.sequence)
            start = decisions_of_sequence(task.numbered, staged(step.sequence))
        states -= step.states
        if best.done() or task.left() == 0:
            return False
        if states <= 0:
            if start is not None:
                take_turn(start)
            return True
    return False


def _prove(task: Task, best: _Best, programs: Iterator[Refinement], take_turn: _Turn) -> bool:
    """Solve the next program; return whether there may be more."""
    step = next(programs, None)
    if step is None:
        return False
    if step.infeasible:
        best.proven_infeasible = step.whatever_order
        return False
    best.raise_bound(step.bound)
    if step.decisions and not best.done():
        if step.excess <= 0:
            best.offer(tuple(sequence_of_decisions(task.numbered, step.decisions)))
        if not best.done():
            take_turn(step.decisions)
    return True
