"""Plans and bounds at the least budget, against brute force."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from remint.errors import BudgetError
from remint.graph import Graph, Plan, verify
from remint.graph.numbered import NumberedGraph
from remint.planners import plan
from remint.planners.contract import Outcome, Task
from remint.planners.methods.auto import auto
from tests.support.planning_graphs import cheapest, random_graph, training_graph

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


@dataclass
class Looks:
    left: int


@dataclass(frozen=True, kw_only=True)
class CountedTask(Task):
    """A task that ends when the planner has looked at the clock that often, however fast the machine is."""

    looks: Looks

    def left(self) -> float:
        self.looks.left -= 1
        return 1e6 if self.looks.left > 0 else 0.0


def outcome_after(graph: Graph, budget: int, looks: int) -> Outcome:
    task = CountedTask(numbered=NumberedGraph.of(graph), budget=budget, deadline=math.inf, seed=3, looks=Looks(looks))
    return auto(task)


@pytest.mark.parametrize("seed", range(6))
def test_more_work_gives_no_worse_plan_near_the_least_budget(seed):
    graph = training_graph(seed + 70) if seed % 2 else random_graph(seed + 30, 26, 40)
    try:
        budget = plan(graph, graph.min_budget_bytes, time_limit=0).peak_bytes
    except BudgetError as error:
        budget = error.known_budget_bytes or graph.peak_bytes
    cost, bound = math.inf, 0.0
    for looks in (0, 1, 3, 10, 30, 100):
        outcome = outcome_after(graph, budget, looks)
        made = Plan.from_sequence(graph, outcome.sequence)
        verify(graph, made, budget)
        assert made.cost <= cost * (1 + 1e-12), looks
        assert outcome.bound >= bound * (1 - 1e-12), looks
        assert outcome.bound <= made.cost * (1 + 1e-9), looks
        cost, bound = made.cost, outcome.bound
