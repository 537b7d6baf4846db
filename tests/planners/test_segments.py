"""Segments of schedules made cheaper: against brute force, and always inside the budget."""

from __future__ import annotations

import math

import pytest

from remint import generators
from remint._core import SegmentSearch
from remint.graph import Graph, Plan, verify
from remint.graph.numbered import NumberedGraph
from remint.planners.contract import Infeasible, Task
from remint.planners.methods.demand import demand
from remint.planners.segments import Segments
from tests.support.planning_graphs import cheapest, random_graph, training_graph, unit_chain

pytestmark = pytest.mark.core
MANY, LONG = 1_000_000, 60.0


def task_of(graph: Graph, budget: int) -> Task:
    return Task(numbered=NumberedGraph.of(graph), budget=budget, deadline=math.inf)


def some_schedule(graph: Graph, budget: int) -> list[int] | None:
    try:
        return list(demand(task_of(graph, budget)).sequence)
    except Infeasible:
        return None


def cost_of(graph: Graph, sequence: list[int]) -> float:
    return sum(graph.ops[i].cost for i in sequence)


@pytest.mark.parametrize("seed", range(150))
def test_a_segment_that_is_the_whole_schedule_becomes_what_brute_force_finds(seed):
    graph = random_graph(seed + 11000, 7, 8)
    low, high = graph.min_budget_bytes, graph.peak_bytes
    for budget in sorted({low, (3 * low + high) // 4, (low + high) // 2}):
        sequence = some_schedule(graph, budget)
        if sequence is None:
            continue
        search = SegmentSearch(NumberedGraph.of(graph).native, float(budget))
        found = search.improve(sequence, 0, len(sequence), MANY, LONG) or sequence
        made = Plan.from_sequence(graph, found)
        verify(graph, made, budget)
        assert made.cost == pytest.approx(cheapest(graph, budget, any_order=True)), (seed, budget)


@pytest.mark.parametrize("seed", range(40))
def test_any_segment_stays_inside_the_budget_and_costs_less(seed):
    graph = training_graph(seed)
    low, high = graph.min_budget_bytes, graph.peak_bytes
    for budget in (low, (3 * low + high) // 4):
        sequence = some_schedule(graph, budget)
        if sequence is None:
            continue
        search = SegmentSearch(NumberedGraph.of(graph).native, float(budget))
        for begin in range(0, len(sequence), 3):
            for end in range(begin, len(sequence) + 1, 4):
                found = search.improve(sequence, begin, end, MANY, LONG)
                if found:
                    assert cost_of(graph, found) < cost_of(graph, sequence)
                    verify(graph, Plan.from_sequence(graph, found), budget)


def test_a_run_that_serves_nothing_is_left_out():
    graph = unit_chain(6)
    wasteful = [*range(7), 0, 1, 2, *range(7, 13)]
    search = SegmentSearch(NumberedGraph.of(graph).native, float(graph.peak_bytes))
    assert search.improve(wasteful, 5, 11, MANY, LONG) == list(range(13))
    assert search.improve(wasteful, 0, 7, MANY, LONG) == [], "it runs nothing again"
    assert search.looked_into > 0


def test_values_that_memory_had_space_for_are_there_when_a_segment_begins():
    # The schedule lets x0 go at once and makes it again; a segment that begins after that need not.
    graph = unit_chain(4)
    wasteful = [0, 1, 2, 3, 4, 5, 6, 7, 0, 8]
    search = SegmentSearch(NumberedGraph.of(graph).native, float(graph.peak_bytes))
    assert search.improve(wasteful, 7, 10, MANY, LONG) == list(range(9))


def test_a_search_ends_when_its_time_is_up():
    graph = Graph.from_trace(generators.residual(3))
    budget = graph.min_budget_bytes
    sequence = some_schedule(graph, budget)
    assert sequence is not None
    search = SegmentSearch(NumberedGraph.of(graph).native, float(budget))
    assert search.improve(sequence, 0, len(sequence), MANY, 0.0) == []
    assert search.looked_into < 10_000


def test_segments_that_do_not_exist_are_refused():
    search = SegmentSearch(NumberedGraph.of(unit_chain(3)).native, 7.0)
    with pytest.raises(ValueError, match="no such segment"):
        search.improve(list(range(7)), 3, 9, MANY, LONG)
    with pytest.raises(ValueError, match="no such op"):
        search.improve([0, 99], 0, 2, MANY, LONG)


def test_segments_end_when_none_can_be_made_cheaper():
    graph = unit_chain(12)
    budget = graph.min_budget_bytes + 2
    sequence = some_schedule(graph, budget)
    assert sequence is not None
    segments = Segments(task_of(graph, budget))
    assert segments.look_at_next() is None, "there is no schedule yet"
    segments.begin(sequence)
    cost, steps = cost_of(graph, sequence), 0
    while (step := segments.look_at_next()) is not None:
        steps += 1
        assert steps < 1000
        if step.sequence is not None:
            assert cost_of(graph, list(step.sequence)) < cost
            cost = cost_of(graph, list(step.sequence))
    assert cost == pytest.approx(cheapest(graph, budget, any_order=True))
    segments.begin(sequence)
    assert segments.look_at_next() is None, "a dearer schedule is no new beginning"
