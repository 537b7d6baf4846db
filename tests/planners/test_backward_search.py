"""The search over sets of values: against brute force, and as a bound when only some values are watched."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from remint._core import BackwardSearch
from remint.graph import Graph, Plan, verify
from remint.graph.numbered import NumberedGraph
from tests.support.planning_graphs import cheapest, random_graph, training_graph, unit_chain

pytestmark = pytest.mark.core


def solve(graph: Graph, budget: int, watched: list[int] | None = None, limit: float = math.inf) -> BackwardSearch:
    numbered = NumberedGraph.of(graph)
    every = list(range(len(numbered.nbytes)))
    search = BackwardSearch(numbered.native, float(budget), every if watched is None else watched)
    bound = 0.0
    while not search.ended:
        search.run(50, limit)
        assert search.bound >= bound, "a bound never falls"
        bound = search.bound
    return search


def budgets(graph: Graph) -> list[int]:
    low, high = graph.min_budget_bytes, graph.peak_bytes
    return sorted({max(0, low - 1), low, (3 * low + high) // 4, (low + high) // 2, high})


@pytest.mark.parametrize("seed", range(120))
def test_it_finds_what_brute_force_finds(seed):
    graph = random_graph(seed + 5000, 7, 8)
    for budget in budgets(graph):
        least = cheapest(graph, budget, any_order=True)
        search = solve(graph, budget)
        assert search.found == (least is not None), (seed, budget)
        if least is None:
            assert search.bound == math.inf
            continue
        made = Plan.from_sequence(graph, search.sequence)
        verify(graph, made, budget)
        assert made.cost == pytest.approx(least)
        assert graph.cost + search.bound == pytest.approx(least)


def tight_graph(seed: int) -> Graph:
    """A random graph in which many schedules cost the same, and some ops cost nothing."""
    graph, r = random_graph(seed + 50000, 7, 8), random.Random(seed)
    return Graph(tuple(replace(op, cost=r.choice((0, 1, 1, 2))) for op in graph.ops), graph.constants, graph.outputs)


@pytest.mark.parametrize("seed", range(120))
def test_orders_left_out_and_prefixes_learned_change_no_result_when_memory_is_short(seed):
    graph = tight_graph(seed)
    numbered = NumberedGraph.of(graph)
    for budget in (graph.min_budget_bytes, graph.min_budget_bytes + 1):
        least = cheapest(graph, budget, any_order=True)
        for prefixes in (False, True):
            search = BackwardSearch(numbered.native, float(budget), list(range(len(numbered.nbytes))))
            while prefixes and not search.learn_prefixes(5):
                assert not search.ended, "the search for the whole step has not begun"
            while not search.ended:
                search.run(50, math.inf)
            assert search.found == (least is not None), (seed, budget)
            if least is None:
                assert search.bound == math.inf
                continue
            made = Plan.from_sequence(graph, search.sequence)
            verify(graph, made, budget)
            assert made.cost == pytest.approx(least), (seed, budget)
            assert graph.cost + search.bound == pytest.approx(least), (seed, budget)


@pytest.mark.parametrize("seed", range(40))
def test_the_bound_of_a_search_that_has_not_ended_is_never_above_the_optimum(seed):
    graph = tight_graph(seed + 500)
    budget = graph.min_budget_bytes
    least = cheapest(graph, budget, any_order=True)
    numbered = NumberedGraph.of(graph)
    search = BackwardSearch(numbered.native, float(budget), list(range(len(numbered.nbytes))))
    search.learn_prefixes(3)
    while not search.ended:
        search.run(1, math.inf)
        assert graph.cost + search.bound <= (math.inf if least is None else least + 1e-6)


def test_prefixes_are_learned_before_the_search():
    native = NumberedGraph.of(unit_chain(8)).native
    search = BackwardSearch(native, 5.0, list(range(8)))
    assert search.learn_prefixes(10**6)
    search.run(10, math.inf)
    with pytest.raises(ValueError, match="before"):
        search.learn_prefixes(10)


@pytest.mark.parametrize("seed", range(60))
def test_with_few_values_watched_it_is_a_bound(seed):
    graph = random_graph(seed + 7000, 7, 8)
    r = random.Random(seed)
    values = range(sum(len(op.outputs) for op in graph.ops))
    for budget in budgets(graph)[1:]:
        least = cheapest(graph, budget, any_order=True)
        for count in (0, 2, 4):
            search = solve(graph, budget, r.sample(values, min(count, len(values))))
            assert graph.cost + search.bound <= (math.inf if least is None else least + 1e-6), (seed, budget, count)
            if least is not None:
                assert search.found


@pytest.mark.parametrize("seed", range(12))
def test_a_limit_proves_that_there_is_nothing_below_it(seed):
    graph = training_graph(seed)
    for budget in budgets(graph)[1:]:
        free = solve(graph, budget)
        if not free.found or free.bound == 0:
            continue
        assert not solve(graph, budget, limit=free.bound).found
        again = solve(graph, budget, limit=free.bound * 1.01)
        assert again.found
        assert again.bound == pytest.approx(free.bound)


@pytest.mark.parametrize("seed", range(40))
def test_what_an_easier_search_learned_changes_no_result(seed):
    graph = random_graph(seed + 9000, 12, 16)
    numbered = NumberedGraph.of(graph)
    values = list(range(len(numbered.nbytes)))
    random.Random(seed).shuffle(values)
    for budget in budgets(graph)[1:4]:
        alone = solve(graph, budget)
        easier: BackwardSearch | None = None
        for count in (len(values) // 3, 2 * len(values) // 3, len(values)):
            search = BackwardSearch(numbered.native, float(budget), values[:count], easier)
            while not search.ended:
                search.run(50, math.inf)
            easier = search
        assert search.found == alone.found
        assert search.bound == pytest.approx(alone.bound)


def test_a_search_with_less_memory_is_no_easier_one():
    native = NumberedGraph.of(unit_chain(6)).native
    small, large = BackwardSearch(native, 4.0, [0, 1]), BackwardSearch(native, 6.0, [0, 1, 2])
    BackwardSearch(native, 4.0, [0, 1, 2], large)
    with pytest.raises(ValueError, match="easier"):
        BackwardSearch(native, 6.0, [0, 1, 2], small)
    with pytest.raises(ValueError, match="easier"):
        BackwardSearch(native, 4.0, [1, 0, 2], large)


def test_what_runs_once_stays():
    chain = unit_chain(6)
    once = Graph(
        tuple(op if op.name != "f2" else type(op)(op.name, op.cost, op.inputs, op.outputs, False) for op in chain.ops),
        {},
        chain.outputs,
    )
    search = solve(once, 5)
    assert search.found
    assert search.sequence.count(2) == 1
    verify(once, Plan.from_sequence(once, search.sequence), 5)


def test_values_that_do_not_exist_are_refused():
    native = NumberedGraph.of(unit_chain(3)).native
    with pytest.raises(ValueError, match="no such value"):
        BackwardSearch(native, 3.0, [99])
