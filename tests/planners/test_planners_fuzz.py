"""Odd graphs, every planner, and a checker that shares no code with `verify` or any planner."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from remint.errors import BudgetError
from remint.graph import Compute, Graph, Op, Plan
from remint.graph.numbered import NumberedGraph
from remint.planners import PLANNERS, frontier, plan
from remint.planners.contract import Task
from remint.planners.cpu_clock import cpu_seconds
from remint.planners.cut_bound import best_cut
from remint.planners.solvers.integer_program import IntegerProgram
from remint.planners.solvers.solve import solve_by_clauses
from tests.support.planning_graphs import cheapest, random_graph, training_graph

SIZES = (0, 0, 1, 2, 3, 5, 8, 1000)
COSTS = (0, 0, 0.25, 1, 2, 3, 7)


def check(graph: Graph, made: Plan, budget: int) -> None:
    """Play the steps on a list of (name, bytes) and compare what is seen with what the plan says."""
    size = dict(graph.constants)
    for op in graph.ops:
        size |= op.outputs
    there = list(graph.constants)
    times = [0] * len(graph.ops)
    cost, peak = Fraction(0), sum(size[v] for v in there)
    for step in made.steps:
        if isinstance(step, Compute):
            op = graph.ops[step.op]
            assert set(op.inputs) <= set(there), f"{op.name} misses an input"
            there += [v for v in op.outputs if v not in there]
            peak = max(peak, sum(size[v] for v in there))
            cost += Fraction(op.cost)
            times[step.op] += 1
        else:
            assert step.value not in graph.constants
            there.remove(step.value)
    assert all(times), "an op never runs"
    assert all(count == 1 for op, count in zip(graph.ops, times, strict=True) if not op.rematerializable)
    assert set(graph.outputs) <= set(there)
    assert peak == made.peak_bytes <= budget
    assert made.cost == pytest.approx(float(cost))
    assert made.bound <= float(cost) * (1 + 1e-9) + 1e-12


def odd_graph(seed: int) -> Graph:
    """Anything a graph may be: no bytes, no cost, no outputs or many, no inputs, islands, what runs once."""
    r = random.Random(seed)
    count = r.choice((1, 2, 3, 5, 8, 13, 21))
    constants = {f"c{i}": r.choice(SIZES) for i in range(r.randint(0, 3))}
    wide, once = r.random() < 0.3, r.random() < 0.3
    values: list[str] = []
    ops = []
    for i in range(count):
        pool = values if wide else values[-4:]
        reads = r.sample(pool, min(len(pool), r.choice((0, 1, 1, 2, 3))))
        reads += r.sample(sorted(constants), r.randint(0, len(constants)))
        reads += reads[:1] if r.random() < 0.1 else []  # the same value twice
        made = {f"v{i}.{k}": r.choice(SIZES) for k in range(r.choice((0, 1, 1, 1, 2, 4)))}
        ops.append(Op(f"op{i}", r.choice(COSTS), tuple(reads), made, not (once and r.random() < 0.3)))
        values += made
    pool = [*values, *constants]
    return Graph(tuple(ops), constants, tuple(r.sample(pool, min(len(pool), r.randint(0, 4)))))


def budgets(graph: Graph) -> list[int]:
    low, high = graph.min_budget_bytes, graph.peak_bytes
    return sorted({max(0, low - 1), low, low + (high - low) // 3, high})


def all_planners(graph: Graph, budget: int, names: list[str], seconds: float) -> dict[str, Plan]:
    found: dict[str, Plan] = {}
    refused: list[BudgetError] = []
    for name in names:
        try:
            found[name] = plan(graph, budget, name, seconds)
        except BudgetError as error:
            refused.append(error)
        else:
            check(graph, found[name], budget)
    for error in refused:
        least, known = error.min_budget_bytes or 0, error.known_budget_bytes or 0
        assert graph.constant_bytes <= least <= known <= graph.peak_bytes
        assert "smallest budget" in str(error)
    if found:
        assert "auto" in found, "auto finds a plan whenever anyone does"
        assert all((error.min_budget_bytes or 0) <= budget for error in refused), "it was said that none exists"
        least = min(made.cost for made in found.values())
        for name, made in found.items():
            assert made.bound <= least * (1 + 1e-6) + 1e-9, name
    return found


QUICK = [name for name in PLANNERS if name not in ("interval", "checkmate", "rounding", "rounding-repair")]


@pytest.mark.parametrize("make", [odd_graph, training_graph])
@pytest.mark.parametrize("batch", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 4))])
def test_odd_graphs_with_quick_planners(make, batch):
    for seed in range(batch * 8, batch * 8 + 8):
        graph = make(seed)
        for budget in budgets(graph):
            all_planners(graph, budget, QUICK, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("make", [odd_graph, training_graph])
def test_odd_graphs_with_solvers(make):
    for seed in range(100, 106):
        graph = make(seed)
        for budget in budgets(graph)[1:3]:
            all_planners(graph, budget, [name for name in PLANNERS if name != "interval"], 0.3)
    graph = make(106)
    all_planners(graph, budgets(graph)[-1] - 1, ["interval", "auto"], 1.5)


@pytest.mark.parametrize("make", [odd_graph, training_graph])
def test_the_bound_on_memory_is_below_every_known_peak(make):
    for seed in range(200, 260):
        graph = make(seed)
        low, high = graph.min_budget_bytes, graph.peak_bytes
        assert low <= high
        for part in range(8):
            budget = low + (high - low) * part // 8
            try:
                made = plan(graph, budget, "demand", 0.2)
            except BudgetError as error:
                made = plan(graph, error.known_budget_bytes or high, "demand", 0.2)
                check(graph, made, error.known_budget_bytes or high)
            else:
                check(graph, made, budget)


def test_a_frontier_is_monotone():
    for seed in range(4):
        graph = training_graph(seed)
        low, high = graph.min_budget_bytes, graph.peak_bytes
        plans = frontier(graph, [low + (high - low) * i // 5 for i in range(6)], time_limit=0.5)
        found = [made for made in plans.values() if made is not None]
        assert [made.cost for made in found] == sorted((made.cost for made in found), reverse=True)
        assert [made.bound for made in found] == sorted((made.bound for made in found), reverse=True)
        for budget, made in plans.items():
            if made is not None:
                check(graph, made, budget)


@pytest.mark.parametrize("seed", range(30))
def test_cuts_and_programs_bound_the_cheapest_schedule(seed):
    graph = random_graph(seed + 1000, 7, 8)
    for budget in budgets(graph)[1:]:
        least = cheapest(graph, budget, any_order=True)
        task = Task(numbered=NumberedGraph.of(graph), budget=budget, deadline=cpu_seconds() + 5)
        bound, dropped = best_cut(task)
        assert bound <= (float("inf") if least is None else least + 1e-6)
        for drop, value, stage in dropped:
            assert drop
            assert task.numbered.maker[value] < stage
        n = len(graph.ops)
        program = IntegerProgram(task.numbered, budget, tuple(sorted({0, n // 2, n})))
        solution = solve_by_clauses(program, seconds=5)
        assert graph.cost + solution.bound <= (float("inf") if least is None else least + 1e-6)
