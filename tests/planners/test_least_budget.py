"""Plans and bounds at the least budget, against brute force."""

from __future__ import annotations

import pytest

from remint.errors import BudgetError
from remint.graph import verify
from remint.planners import plan
from tests.support.planning_graphs import cheapest, random_graph

pytestmark = pytest.mark.core


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_plan_and_bound_at_the_least_budget(first):
    for seed in range(first, first + 20):
        graph = random_graph(seed + 13000, 7, 8)
        budget = graph.min_budget_bytes
        least = cheapest(graph, budget, any_order=True)
        if least is None:
            with pytest.raises(BudgetError):
                plan(graph, budget, time_limit=5)
            continue
        made = plan(graph, budget, time_limit=5)
        verify(graph, made, budget)
        assert made.cost <= least * 1.001, seed
        # The bound is one on schedules of the class, which may cost more than those of any order.
        in_class = cheapest(graph, budget)
        assert in_class is None or made.bound <= in_class * (1 + 1e-9), seed
