from __future__ import annotations

from dataclasses import replace

import pytest

from remint.errors import BudgetError
from remint.graph import Compute, Free, Graph, Op, Plan, verify
from tests.support.planning_graphs import random_graph, unit_chain

F = Op("f", 2, ("c",), {"x": 10})
G = Op("g", 3, ("x",), {"y": 1})
H = Op("h", 4, ("y", "x"), {"z": 1})
GRAPH = Graph((F, G, H), {"c": 100}, ("z",))


def plan(*steps: int | str, cost: float = 9, peak: int = 112, bound: float = 9) -> Plan:
    return Plan(GRAPH, tuple(Compute(s) if isinstance(s, int) else Free(s) for s in steps), cost, peak, bound)


def test_a_right_plan_passes():
    verify(GRAPH, plan(0, 1, 2), 112)
    verify(GRAPH, plan(0, 1, "x", 0, 2, "x", "y", cost=11, bound=9), 112)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (plan(0, "x", 1, 2), "'g' reads 'x'"),
        (plan(0, 1, 2, "z"), "'z' is not resident at the end"),
        (plan(0, 1), "never runs"),
        (plan(0, 1, 2, "c"), "frees the constant"),
        (plan(0, 1, 2, "x", "x"), "is not resident"),
        (plan(0, 1, 2, 3), "runs op 3"),
        (plan(0, 1, 2, -1), "runs op -1"),
        (plan(0, 1, 2, cost=8), "it costs 8"),
        (plan(0, 1, 2, peak=111), "its peak is 111"),
        (plan(0, 1, 2, bound=10), "bound"),
    ],
)
def test_a_wrong_plan_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        verify(GRAPH, wrong)


def test_a_budget_is_kept():
    with pytest.raises(BudgetError, match="1 B above the budget") as error:
        verify(GRAPH, plan(0, 1, 2), 111)
    assert error.value.known_budget_bytes == 112


def test_what_must_not_run_twice_runs_once():
    graph = Graph((replace(F, rematerializable=False), G, H), {"c": 100}, ("z",))
    with pytest.raises(ValueError, match="must not run twice"):
        verify(graph, plan(0, 1, "x", 0, 2, cost=11))


def test_an_output_that_is_still_resident_is_not_counted_twice():
    graph = Graph((Op("f", 1, (), {"a": 5, "b": 7}), Op("g", 1, ("a", "b"), {"c": 0})), {}, ("c",))
    steps = (Compute(0), Free("a"), Compute(0), Compute(1))
    verify(graph, Plan(graph, steps, 3, 12, 2), 12)


def test_frees_are_as_early_as_can_be():
    for seed in range(100):
        graph = random_graph(seed, 12, 24)
        made = Plan.from_sequence(graph, range(len(graph.ops)))
        assert made.peak_bytes == graph.peak_bytes
        assert made.cost == graph.cost
        assert made.overhead == 0
        verify(graph, made, graph.peak_bytes)


def test_json_round_trip(tmp_path):
    made = Plan.from_sequence(unit_chain(4), (0, 1, 2, 3, 4, 5, 0, 1, 2, 6, 7, 8), planner="hand")
    made.save(tmp_path / "step.plan")
    assert Plan.load(tmp_path / "step.plan") == made


def test_explain_names_what_is_rematerialized():
    graph = Graph((replace(F, source="net.py:12"), G, H), {"c": 100}, ("z",))
    text = Plan.from_sequence(graph, (0, 1, 0, 2), planner="hand").explain()
    assert "f: 1x for 2.0 s (10 B), before h  (net.py:12)" in text
    assert "2 of 3 ops run once; 1 are rematerialized" in text
