"""The native search: its books are those of a fresh replay, whatever moves led there."""

from __future__ import annotations

import random

import pytest

from remint._core import Search
from remint.graph import Plan
from remint.graph.numbered import NumberedGraph
from remint.planners.decisions import decisions_of_sequence, is_staged, sequence_of_decisions
from remint.planners.repeated_layers import twins
from tests.support.planning_graphs import random_graph

pytestmark = pytest.mark.core


@pytest.mark.parametrize("seed", range(40))
def test_incremental_simulation_equals_a_fresh_one(seed):
    graph = random_graph(seed, 30, 50)
    numbered = NumberedGraph(graph)
    budget = graph.min_budget_bytes + (graph.peak_bytes - graph.min_budget_bytes) // 3
    search = Search(numbered.native, budget, seed, twins(numbered))
    for moves in (1, 2, 3, 50, 400, 1500):
        search.run(moves)
        made = Plan.from_sequence(graph, search.sequence)
        assert made.peak_bytes == search.peak
        assert made.cost == pytest.approx(search.cost)
        assert sum(max(0, m - budget) for m in search.memory) == search.excess
        if search.feasible:
            best = Plan.from_sequence(graph, sequence_of_decisions(numbered, search.best))
            assert best.cost == pytest.approx(search.best_cost)
            assert best.peak_bytes <= budget


@pytest.mark.parametrize("seed", [24, *range(0, 60, 3)])
def test_a_use_that_goes_leaves_its_value_to_the_next(seed):
    # A drop lets two uses without their value, and the same move takes back the first of them.
    graph = random_graph(seed, 120, 200)
    numbered = NumberedGraph(graph)
    span = graph.peak_bytes - graph.min_budget_bytes
    budget = int(graph.min_budget_bytes + random.Random(seed).choice((0, 0.05, 0.2, 0.5)) * span)
    search = Search(numbered.native, budget, seed, twins(numbered))
    for _ in range(12):
        search.run(150)
        if search.feasible:
            best = Plan.from_sequence(graph, sequence_of_decisions(numbered, search.best))
            assert best.cost == pytest.approx(search.best_cost)
            assert best.peak_bytes <= budget


@pytest.mark.parametrize("seed", range(20))
def test_decisions_stand_for_their_sequence(seed):
    graph = random_graph(seed, 25, 40)
    numbered = NumberedGraph(graph)
    search = Search(numbered.native, graph.min_budget_bytes, seed, [])
    search.run(500)
    sequence = search.sequence
    assert is_staged(sequence)
    assert sequence_of_decisions(numbered, decisions_of_sequence(numbered, sequence)) == sequence
