"""What every planner promises, checked on random graphs; brute force decides what is optimal."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remint import generators
from remint.errors import BudgetError
from remint.graph import Graph, Op, Plan, verify
from remint.planners import PLANNERS, frontier, plan
from remint.planners.cpu_clock import cpu_seconds
from remint.planners.methods.griewank import revolve
from tests.support.examples import examples
from tests.support.planning_graphs import cheapest, graphs, random_graph, training_graph, unit_chain

QUICK = [name for name in PLANNERS if name != "interval"]


def attempt(graph: Graph, budget: int, name: str, seconds: float = 1) -> Plan | None:
    try:
        made = plan(graph, budget, name, time_limit=seconds)
    except BudgetError as error:
        if not (error.min_budget_bytes or 0) <= (error.known_budget_bytes or 0):
            raise AssertionError("a plan is known below the proven least budget") from error
        return None
    verify(graph, made, budget)
    return made


@pytest.mark.parametrize("batch", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 6))])
def test_checkmate_and_auto_agree_with_brute_force(batch):
    for seed in range(batch * 60, batch * 60 + 60):
        graph = random_graph(seed, 7 if seed % 4 == 0 else 6, 8)
        low, high = graph.min_budget_bytes, graph.peak_bytes
        for budget in sorted({low, (2 * low + high) // 3, (low + 2 * high) // 3}):
            least = cheapest(graph, budget)
            # Where the class has no schedule, one that runs ops in another order may fit, and auto has it.
            loosest = cheapest(graph, budget, any_order=True) if least is None else least
            for name, expected in (("checkmate", least), ("auto", loosest)):
                made = attempt(graph, budget, name, 10)
                assert (made is None) == (expected is None), (seed, budget, name)
                if made is not None:
                    assert made.cost >= expected - 1e-9, (seed, budget, name)
                    assert made.bound <= expected + 1e-6, (seed, budget, name)
                    if least is not None:
                        assert made.cost <= least * 1.001 + 1e-9, (seed, budget, name)


@examples(25)
@given(graphs(), st.floats(0, 1))
def test_every_plan_of_every_planner_verifies_and_no_bound_is_above_a_cost(graph, part):
    budget = graph.min_budget_bytes + int(part * (graph.peak_bytes - graph.min_budget_bytes))
    made = {name: attempt(graph, budget, name, 2 if name == "auto" else 0.3) for name in QUICK}
    found = {name: p for name, p in made.items() if p is not None}
    if found:
        assert made["auto"] is not None, "auto finds a plan whenever anyone does"
        cost = min(p.cost for p in found.values())
        for name, p in found.items():
            assert p.bound <= cost * (1 + 1e-6), name
        assert made["auto"].cost <= cost * 1.001 + 1e-9


@pytest.mark.parametrize(("layers", "cost"), [(16, 42), (32, 82), (64, 162)])
def test_unit_chains_at_half_memory(layers, cost):
    made = plan(unit_chain(layers), "50%", time_limit=20)
    assert made.cost == cost
    assert made.optimal


def test_a_larger_budget_is_never_worse():
    graph = random_graph(7, 40, 60)
    low, high = graph.min_budget_bytes, graph.peak_bytes
    plans = frontier(graph, [low + (high - low) * i // 8 for i in range(9)], time_limit=3)
    costs = [p.cost for p in plans.values() if p is not None]
    assert costs == sorted(costs, reverse=True)
    for budget, made in plans.items():
        if made is not None:
            verify(graph, made, budget)
    assert plans[high] is not None
    assert plans[high].cost == graph.cost


def test_a_plan_for_a_smaller_budget_is_one_for_a_larger_one():
    graph = training_graph(3)
    low, high = graph.min_budget_bytes, graph.peak_bytes
    budgets = [b for b in range(low, high + 1, max(1, (high - low) // 12)) if b >= low]
    costs = []
    for budget in budgets:
        try:
            costs.append(plan(graph, budget, time_limit=0).cost)  # no time to search
        except BudgetError:
            assert not costs, "a smaller budget had a plan"
    assert costs == sorted(costs, reverse=True)


def test_same_seed_same_plan():
    graph = random_graph(11, 40, 60)
    budget = (graph.min_budget_bytes + graph.peak_bytes) // 2
    first, second = (plan(graph, budget, "search", seed=3) for _ in range(2))
    assert first.steps == second.steps


def test_an_impossible_budget_says_what_is_possible():
    graph = unit_chain(8)
    with pytest.raises(BudgetError, match="no schedule can") as error:
        plan(graph, 2)
    assert error.value.min_budget_bytes == 3
    known = error.value.known_budget_bytes
    assert 3 <= known < graph.peak_bytes
    verify(graph, plan(graph, known), known)


@pytest.mark.parametrize("name", ["auto", "search", "checkmate", "rounding-repair", "interval"])
def test_a_time_limit_is_kept(name):
    graph = unit_chain(150)
    began = cpu_seconds()
    attempt(graph, graph.peak_bytes // 3, name, 1)
    assert cpu_seconds() - began < 4  # one step of a solver may take longer; a solver that looks at no clock may not


def test_a_limit_is_one_of_cpu_time():
    graph = unit_chain(150)
    slept = 0.0

    def sleep(_progress):
        nonlocal slept
        if slept < 1.5:
            slept += 0.5
            time.sleep(0.5)

    began = cpu_seconds()
    made = plan(graph, "20%", "search", time_limit=1, progress=sleep)
    assert slept == 1.5, "there was nothing to tell"
    assert made.seconds > slept
    assert cpu_seconds() - began > 0.8, "sleeping took time from planning"


@pytest.mark.parametrize("make", [lambda: training_graph(5), lambda: random_graph(3, 30, 40), lambda: unit_chain(20)])
def test_more_time_gives_no_worse_plan(make):
    graph = make()
    for part in (0.05, 0.3):
        budget = graph.min_budget_bytes + int(part * (graph.peak_bytes - graph.min_budget_bytes))
        last: Plan | None = None
        for seconds in (0.02, 0.1, 0.4, 1.5):
            made = attempt(graph, budget, "auto", seconds)
            if last is not None:
                assert made is not None
                assert made.cost <= last.cost
                assert made.bound >= last.bound * (1 - 1e-9)
            last = made


@pytest.mark.parametrize("budget", ["40%", "45%", "50%"])
def test_small_u_shapes_are_solved(budget):
    graph = Graph.from_trace(generators.unet(1))  # 51 ops
    made = plan(graph, budget, time_limit=60)
    verify(graph, made, budget)
    assert made.gap <= 1e-3


def test_the_smallest_known_budget_can_be_planned():
    graph = Graph.from_trace(generators.unet(1))
    with pytest.raises(BudgetError) as error:
        plan(graph, graph.min_budget_bytes, time_limit=1)
    known = error.value.known_budget_bytes
    verify(graph, plan(graph, known, time_limit=1), known)


def test_the_same_question_has_the_same_answer():
    graph = Graph.from_trace(generators.unet(1))
    first, second = (plan(graph, "42%", time_limit=30, seed=1) for _ in range(2))
    assert first.steps == second.steps
    assert first.bound == second.bound


def test_control_c_while_a_solver_runs_returns_the_best_plan_so_far():
    graph = unit_chain(60)
    clock = threading.Timer(1.5, os.kill, [os.getpid(), signal.SIGINT])
    clock.start()
    try:
        made = plan(graph, "20%", "checkmate", time_limit=30)
    finally:
        clock.cancel()
    verify(graph, made, "20%")
    assert made.seconds < 10


@pytest.fixture
def ctrl_c_raises() -> Iterator[None]:
    """Listen to it also where the shell has told jobs in the background to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("name", ["search", "auto"])
def test_control_c_returns_the_best_plan_so_far(name, ctrl_c_raises):
    graph = unit_chain(200)
    seen = []

    def interrupt(progress):
        if progress.cost is not None and not seen:
            seen.append(progress)
            signal.raise_signal(signal.SIGINT)

    made = plan(graph, "30%", name, time_limit=20, progress=interrupt)
    assert seen
    verify(graph, made, "30%")
    assert made.seconds < 5


def test_bad_arguments():
    graph = unit_chain(2)
    with pytest.raises(ValueError, match="there is no planner 'best'"):
        plan(graph, 10, "best")
    with pytest.raises(ValueError, match="time limit"):
        plan(graph, 10, time_limit=-1)


def test_empty_graph():
    graph = Graph((), {"c": 5}, ("c",))
    for name in PLANNERS:
        assert plan(graph, 5, name).steps == ()


def test_ops_without_bytes_or_cost():
    graph = Graph((Op("f", 0, (), {"x": 0}), Op("g", 0, ("x",), {"y": 0})), {}, ("y",))
    for name in PLANNERS:
        verify(graph, plan(graph, 0, name), 0)


@pytest.mark.parametrize("slots", [1, 2, 3, 5])
def test_revolve_needs_the_binomial_number_of_steps(slots):
    for steps in range(1, 40):
        kept = list(revolve(steps, slots))
        assert [step for step, _ in kept] == list(range(steps - 1, -1, -1))
        assert all(len(stack) <= slots for _, stack in kept)
        advances = 0
        held: tuple[int, ...] = ()
        for step, stack in kept:
            origin = max((k for k in held if k < step), default=-1)
            advances += step - origin - 1
            held = stack
        # With one kept step more than slots (the input), reversing needs at most this many forward steps.
        passes, reach = 0, 1
        while reach < steps:
            passes += 1
            reach = reach * (slots + passes) // passes
        assert advances <= passes * steps
