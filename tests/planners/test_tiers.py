"""Plans with a tier: the rules of the replay, and the search and the bound against brute force."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from remint.errors import BudgetError
from remint.graph import Compute, Fetch, Free, Graph, Offload, Op, Plan, Tier, verify
from remint.planners import plan
from remint.planners.tiers.planning import PLANNERS_WITH_TIER, least_with_tier
from tests.support.planning_graphs import random_graph, training_graph, unit_chain
from tests.support.planning_with_tier import cheapest_with_tier

pytestmark = pytest.mark.core

# x is made, waits while y is made, and is read again.
SAVED = Graph(
    (
        Op("make x", 2, (), {"x": 4}),
        Op("make y", 10, (), {"y": 6}),
        Op("read y", 10, ("y",), {"z": 1}),
        Op("read both", 3, ("x", "z"), {"r": 1}),
    ),
    {},
    ("r",),
)
AWAY = (Compute(0), Offload("x"), Free("x"), Compute(1), Compute(2), Free("y"), Fetch("x"), Compute(3))


def made(steps, tier: Tier | None, graph: Graph = SAVED) -> Plan:
    found = Plan.from_steps(graph, steps, tier=tier)
    verify(graph, found)
    return found


def test_ops_and_frees_wait_for_transfers():
    # 4 bytes take 2 s: the free waits for the copy, and the last op for the fetch.
    slow = made(AWAY, Tier(bytes=4, bandwidth=2))
    assert (slow.cost, slow.peak_bytes) == (25 + 2 + 2, 7)
    late = made((*AWAY[:2], AWAY[3], Free("x"), *AWAY[4:]), Tier(bytes=4, bandwidth=2))
    assert (late.cost, late.peak_bytes) == (25 + 2, 10), "what leaves counts until it is freed"
    early = made((*AWAY[:4], Fetch("x"), AWAY[4], AWAY[5], AWAY[7]), Tier(bytes=4, bandwidth=2))
    assert (early.cost, early.peak_bytes) == (25 + 2, 11), "what is on its way back counts"
    assert made(AWAY, Tier(bytes=4, bandwidth=2, latency=1)).cost == 25 + 3 + 3


def test_one_transfer_runs_at_a_time():
    graph = Graph(
        (Op("make", 1, (), {"x": 4, "y": 4}), Op("wait", 1, (), {"w": 8}), Op("read", 1, ("x", "y", "w"), {"r": 1})),
        {},
        ("r",),
    )
    away = (Compute(0), Offload("x"), Offload("y"), Free("x"), Free("y"), Compute(1), Fetch("x"), Fetch("y"))
    assert made((*away, Compute(2)), Tier(bytes=8, bandwidth=1), graph).cost == 3 + 8 + 8


def test_an_output_that_is_fetched_is_waited_for():
    graph = Graph((Op("make x", 1, (), {"x": 4}), Op("make y", 1, (), {"y": 4})), {}, ("x",))
    steps = (Compute(0), Offload("x"), Free("x"), Compute(1), Free("y"), Fetch("x"))
    assert made(steps, Tier(bytes=4, bandwidth=4), graph).cost == 2 + 1 + 1


def test_bytes_that_are_written_over_are_copied_first():
    graph = Graph(
        (
            Op("make", 1, (), {"x": 4}),
            Op("in place", 1, ("x",), {"y": 4}, consumes={"y": "x"}),
            Op("end", 1, ("y",), {"r": 1}),
        ),
        {},
        ("r",),
    )
    steps = (Compute(0), Offload("x"), Compute(1), Compute(2), Free("y"), Fetch("x"))
    assert made(steps, Tier(bytes=4, bandwidth=4), graph).cost == 3 + 1


def test_a_tier_holds_a_copy_until_its_last_fetch_begins():
    graph = Graph(
        (
            Op("make x", 1, (), {"x": 4}),
            Op("read x", 1, ("x",), {"y": 4}),
            Op("make z", 1, (), {"z": 8}),
            Op("read y", 1, ("x", "y", "z"), {"r": 1}),
        ),
        {},
        ("r",),
    )
    begin = (Compute(0), Offload("x"), Free("x"), Fetch("x"), Compute(1))
    after = (Offload("y"), Free("y"), Compute(2), Fetch("y"), Compute(3))
    assert made((*begin, *after), Tier(bytes=4, bandwidth=1), graph).peak_bytes == 17
    again = (*begin, Free("x"), *after[:3], Fetch("x"), *after[3:])
    made(again, Tier(bytes=8, bandwidth=1), graph)
    with pytest.raises(ValueError, match="would hold 8 B"):
        made(again, Tier(bytes=7, bandwidth=1), graph)


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        ((Compute(0), Free("x"), *AWAY[3:]), "no copy"),
        ((*AWAY[:6], AWAY[7]), "never fetched"),
        ((Offload("x"), *AWAY), "not resident"),
        ((*AWAY[:7], Fetch("x"), AWAY[7]), "which is resident"),
        ((Compute(0), Offload("x"), Offload("x"), Free("x"), *AWAY[3:]), "never fetched"),
    ],
)
def test_what_breaks_a_rule_is_refused(steps, error):
    with pytest.raises(ValueError, match=error):
        Plan.from_steps(SAVED, steps, tier=Tier(bytes=100, bandwidth=2))


def test_transfers_need_a_tier_and_constants_stay():
    with pytest.raises(ValueError, match="the plan has none"):
        Plan.from_steps(SAVED, AWAY)
    graph = Graph((Op("read", 1, ("c",), {"r": 1}),), {"c": 3}, ("r",))
    with pytest.raises(ValueError, match="constants stay"):
        Plan.from_steps(graph, (Offload("c"), Compute(0), Fetch("c")), tier=Tier(bytes=9, bandwidth=1))


def test_verify_compares_what_it_finds_with_what_the_plan_says():
    found = made(AWAY, Tier(bytes=4, bandwidth=2))
    for wrong, error in (
        (replace(found, cost=25.0, bound=25.0), "costs"),
        (replace(found, peak_bytes=6), "peak"),
        (replace(found, bound=30.0), "bound"),
        (replace(found, tier=Tier(bytes=3, bandwidth=2)), "would hold 4 B"),
        (replace(found, tier=Tier(bytes=4, bandwidth=1)), "costs"),
        (replace(found, tier=None), "the plan has none"),
    ):
        with pytest.raises(ValueError, match=error):
            verify(SAVED, wrong)


def test_a_plan_is_saved_with_its_tier(tmp_path):
    found = made(AWAY, Tier(bytes="4B", bandwidth="2B", latency=0.5))
    found.save(tmp_path / "step.plan")
    assert Plan.load(tmp_path / "step.plan") == found
    assert "go to the tier" in found.explain()
    without = Plan.from_sequence(SAVED, range(4))
    assert without.to_json()["version"] == 1, "plans without a tier are read by those who know none"
    assert found.to_json()["version"] == 2


@pytest.mark.parametrize("wrong", [{"bandwidth": 0}, {"bandwidth": math.inf}, {"latency": -1}, {"bytes": -1}])
def test_a_tier_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="not"):
        Tier(**({"bytes": 1, "bandwidth": 1} | wrong))


def questions(seed: int) -> list[tuple[Graph, int, Tier]]:
    graph, r = random_graph(seed, 5, 5), random.Random(seed)
    low, high = least_with_tier(graph), graph.peak_bytes
    return [
        (graph, budget, Tier(bytes=r.choice((0, 4, 8, 1000)), bandwidth=r.choice((0.5, 1, 2, 8))))
        for budget in sorted({low, (low + high) // 2})
        if budget < high
    ]


@pytest.mark.parametrize("batch", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 12))])
def test_the_search_finds_what_brute_force_finds(batch):
    asked = found = 0
    for seed in range(60 * batch, 60 * batch + 60):
        for graph, budget, tier in questions(seed):
            try:
                ours = plan(graph, budget, time_limit=5, offload=tier)
            except BudgetError:
                assert cheapest_with_tier(graph, budget, tier) is None, (seed, budget, tier)
                continue
            verify(graph, ours, budget)
            least = cheapest_with_tier(graph, budget, tier, ours.cost)
            assert least is not None, "no schedule is as cheap as the plan says it is"
            assert ours.bound <= least + 1e-6, (seed, budget, tier)
            asked += 1
            found += ours.cost <= least + 1e-6
    assert asked >= 10
    assert found >= 0.98 * asked


def test_a_bound_that_knows_no_tier_would_be_wrong():
    chain = unit_chain(12)
    budget = 6
    without = plan(chain, budget, time_limit=5)
    within = plan(chain, budget, time_limit=5, offload=Tier(bytes=100, bandwidth=4))
    verify(chain, within, budget)
    assert within.cost < without.bound
    assert within.bound <= within.cost


@pytest.mark.parametrize("seed", range(4))
def test_a_larger_tier_is_never_worse_and_neither_is_a_tier(seed):
    graph = training_graph(seed)
    budget = (graph.min_budget_bytes + 3 * graph.peak_bytes) // 4
    try:
        before = plan(graph, budget, "search", 1).cost
    except BudgetError:
        before = math.inf
    for nbytes in (0, graph.peak_bytes // 8, graph.peak_bytes // 2, 4 * graph.peak_bytes):
        tier = Tier(bytes=nbytes, bandwidth=2 * graph.peak_bytes / graph.cost)
        found = plan(graph, budget, "search", 2, offload=tier)
        verify(graph, found, budget)
        assert found.cost <= before * (1 + 1e-9)
        before = found.cost


def test_what_cannot_be_recomputed_is_offloaded():
    layers = range(6)
    ops = [Op(f"make {i}", 4, (), {f"x{i}": 8}, rematerializable=False) for i in layers]
    ops += [Op(f"read {i}", 4, (f"x{i}",), {f"r{i}": 0}) for i in layers]
    graph = Graph(tuple(ops), {}, tuple(f"r{i}" for i in layers))
    with pytest.raises(BudgetError):
        plan(graph, 24, time_limit=1)
    for name in PLANNERS_WITH_TIER:
        found = plan(graph, 24, name, 5, offload=Tier(bytes=100, bandwidth=2))
        verify(graph, found, 24)
        assert found.cost == graph.cost, f"{name}: all transfers run beside compute"
    with pytest.raises(BudgetError, match="more of either"):
        plan(graph, 24, time_limit=1, offload=Tier(bytes=8, bandwidth=2))


def test_the_same_question_has_the_same_answer():
    tier = Tier(bytes=100, bandwidth=1)
    first, second = (plan(training_graph(3), "70%", "search", 30, 5, offload=tier) for _ in range(2))
    assert first.steps == second.steps


def test_ops_in_place_can_be_offloaded_too():
    ops = [Op("f0", 20, (), {"a": 4}), Op("relu", 1, ("a",), {"b": 4}, consumes={"b": "a"})]
    ops += [Op("big", 20, (), {"c": 10}), Op("small", 20, ("c",), {"d": 1}), Op("end", 1, ("b", "d"), {"r": 1})]
    graph = Graph(tuple(ops), {}, ("r",))
    found = plan(graph, 11, time_limit=5, offload=Tier(bytes=10, bandwidth=2))
    verify(graph, found, 11)
    assert any(isinstance(step, Fetch) for step in found.steps)


def test_planners_that_know_no_tier_say_so():
    with pytest.raises(ValueError, match="knows no tier"):
        plan(SAVED, 10, "checkmate", offload=Tier(bytes=1, bandwidth=1))
