"""Bounds from a coarse program that is refined where it is wrong; the proofs of `auto`.

A program with few groups (see solvers/integer_program.py) is a relaxation that is solved in a fraction of a second.
With its groups cut at the stages that bind it is nearly as strong as the whole. Its solution is turned into a
schedule; where that breaks the budget, a group is cut and the program solved again. A solution that keeps the
budget is a schedule of proven cost. This is our own method; the principle is that of cutting planes and of
Benders' decomposition.

On fine groups the linear relaxation is weaker, not stronger: it rematerializes an op in small parts over many
stages, each part from a small part of an input. With few groups it cannot.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from remint._core import Search
from remint.planners.contract import Task
from remint.planners.decisions import Decision, decisions_of_sequence
from remint.planners.solvers.integer_program import IntegerProgram
from remint.planners.solvers.solve import solve, solve_by_clauses

MOST_CUTS = 3
# Rounds get longer. None depends on the time limit: with more time there is more of the same.
ROUND_NODES, ROUND_SECONDS, ROUND_GROWTH = 200, 2.0, 1.4
MOST_OPS_IN_FULL = 80
# When HiGHS leaves that gap on a program of that many groups, CP-SAT gets that much of its deterministic time.
WIDE_GAP, FEW_CUTS, CLAUSES_EFFORT = 0.02, 4, 4.0


@dataclass(frozen=True)
class Refinement:
    """One round: the bound so far, and the relaxed solution as decisions, with their real cost and excess."""

    bound: float
    decisions: list[Decision]
    cost: float
    excess: float
    infeasible: bool = False  # no schedule of the class keeps the budget
    whatever_order: bool = False  # nor does any other


def refine(task: Task, incumbent: Sequence[int] | None, gap: float) -> Iterator[Refinement]:
    """Yield better and better bounds until the relaxed solution is a schedule, or time is up."""
    numbered, n = task.numbered, len(task.numbered.cost)
    engine = Search(numbered.native, float(task.budget), 0, [])  # to see what a solution does as a schedule
    base = task.graph.cost
    if incumbent is not None:
        engine.start(decisions_of_sequence(numbered, incumbent))
    else:
        engine.start([])
    first = _worst(engine.memory, 1)[0]
    cuts = {0, min(first, n), min(first + 1, n), n}
    inner: set[int] = set()
    best = base
    growth = 1.0
    while task.left() > 0.05:
        try:
            program = IntegerProgram(numbered, task.budget, tuple(sorted(cuts)), tuple(sorted(inner)), task.deadline)
        except TimeoutError:
            return
        start = program.solution_of(incumbent) if incumbent is not None and not inner else None
        solution = solve(
            program,
            relaxed=False,
            seconds=min(task.left(), ROUND_SECONDS * growth),
            nodes=round(ROUND_NODES * growth),
            start=start,
            tolerance=gap * base / 4,
        )
        if not solution.infeasible and solution.cost - solution.bound > WIDE_GAP * base and len(cuts) <= FEW_CUTS:
            exact = solve_by_clauses(program, seconds=task.left(), effort=CLAUSES_EFFORT)
            if exact.infeasible or exact.interrupted or exact.bound > solution.bound:
                solution = exact
        if solution.interrupted:
            raise KeyboardInterrupt
        if solution.infeasible:
            # What is constrained inside a stage holds for the graph's order there, and no other.
            yield Refinement(math.inf, [], math.inf, math.inf, infeasible=True, whatever_order=not inner)
            return
        best = max(best, base + solution.bound)
        if solution.point is None:
            yield Refinement(best, [], math.inf, math.inf)
            return
        decisions = _decisions(program, solution.point)
        engine.start(decisions)
        yield Refinement(best, decisions, engine.cost, engine.excess)
        if engine.excess <= 0 and engine.cost <= best * (1 + gap):
            return
        growth *= ROUND_GROWTH
        before = len(cuts) + len(inner)
        _cut(engine, task.budget, n, cuts, inner)
        if len(cuts) + len(inner) == before:
            _split_repeats(engine.sequence, n, cuts)
        if len(cuts) + len(inner) == before and n <= MOST_OPS_IN_FULL:
            cuts.update(range(n + 1))
            inner.update(range(1, n + 1))
        if len(cuts) + len(inner) == before:
            return


def _decisions(program: IntegerProgram, point: np.ndarray) -> list[Decision]:
    """Return decisions that keep what the solution keeps when a group begins, and all they can otherwise."""
    kept = {key: point[column] > 0.5 for key, column in program.keep.items()}
    decisions: list[Decision] = []
    for (g, v), stays in kept.items():
        start, made = program.starts[g], program.numbered.maker[v]
        if not stays:
            decisions.append((True, v, start))
        elif g > 1 and made < program.starts[g - 1] and not kept[g - 1, v]:
            decisions.append((False, made, start - 1))
    return decisions


def _worst(memory: Sequence[float], count: int) -> list[int]:
    """The stages of most memory, at most one of each run of neighbours."""
    order = sorted(range(len(memory)), key=lambda t: -memory[t])
    chosen: list[int] = []
    for t in order:
        if all(abs(t - other) > 2 for other in chosen):
            chosen.append(t)
        if len(chosen) == count:
            break
    return chosen


def _cut(engine: Search, budget: int, n: int, cuts: set[int], inner: set[int]) -> None:
    memory = engine.memory
    for t in _worst(memory, MOST_CUTS):
        if memory[t] <= budget:
            continue
        if {t, min(t + 1, n)} <= cuts:
            inner.add(t)
        cuts.update((t, min(t + 1, n)))


def _split_repeats(sequence: Sequence[int], n: int, cuts: set[int]) -> None:
    """Cut between two runs of one op that a group counted once."""
    starts = sorted(cuts)
    seen: dict[int, int] = {}
    stage = 0
    group = 0
    for i in sequence:
        while group + 1 < len(starts) and starts[group + 1] <= stage:
            group += 1
            seen.clear()
        if i == stage:
            stage += 1
        if i in seen and seen[i] < stage:
            cuts.add(min(stage, n))
            return
        seen[i] = stage
