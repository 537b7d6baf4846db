"""`plan(..., offload=...)`: plans with a tier, their bound, and the error when there is none."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from remint.errors import BudgetError
from remint.graph import Graph, Offload, Plan, Tier
from remint.graph.numbered import NumberedGraph
from remint.graph.steps import Step
from remint.planners.contract import Infeasible, Progress, Task
from remint.planners.cpu_clock import cpu_seconds
from remint.planners.tiers.bound import bound_with_tier
from remint.planners.tiers.search import search_with_tier
from remint.units import format_bytes

PLANNERS_WITH_TIER = ("auto", "search", "demand")


def plan_with_tier(
    graph: Graph,
    budget: int,
    tier: Tier,
    planner: str,
    time_limit: float,
    seed: int,
    listener: Callable[[Progress], None] | None,
    hint: Plan | None,
    stays: frozenset[str] = frozenset(),
) -> Plan:
    """Return a plan that may use the tier; what was found for smaller tiers and budgets is where it begins.

    Values of `stays` are not copied.
    """
    if planner not in PLANNERS_WITH_TIER:
        raise ValueError(f"{planner} knows no tier: use {', '.join(PLANNERS_WITH_TIER)}, or leave offload= out")
    began = time.monotonic()
    numbered = NumberedGraph.of(graph)
    task = Task(
        numbered=numbered,
        budget=budget,
        deadline=cpu_seconds() + time_limit,
        seed=seed,
        started=began,
        listener=listener,
    )
    least = least_with_tier(graph)
    bound = bound_with_tier(task.relaxed, tier) if budget >= least else math.inf
    if math.isinf(bound):
        raise BudgetError(
            f"{format_bytes(budget)} was asked of {planner} with a tier: no schedule can. One op needs "
            f"{format_bytes(least)} at once, whatever is offloaded: give at least that",
            min_budget_bytes=least,
            known_budget_bytes=graph.peak_bytes,
        )
    known = _Known.of(graph)
    begin = [made.steps for made in known.that_fit(budget, tier, planner) if stays.isdisjoint(_copied(made.steps))]
    if hint is not None:
        begin.append(hint.steps)
    if graph.peak_bytes <= budget:
        begin.append(Plan.from_sequence(graph, range(len(graph.ops))).steps)
    try:
        made = search_with_tier(task, tier, bound, begin, stays, anneal=planner != "demand")
    except Infeasible as failure:
        raise BudgetError(
            f"{format_bytes(budget)} was asked of {planner} with a tier of {format_bytes(tier.capacity)}: {failure}. "
            f"Below {format_bytes(least)} no schedule exists: give more of either, or more time",
            min_budget_bytes=least,
            known_budget_bytes=graph.peak_bytes,
        ) from None
    made = replace(made, planner=planner, seconds=time.monotonic() - began)
    known.plans.append((budget, planner, made))
    return made


def _copied(steps: Sequence[Step]) -> set[str]:
    return {step.value for step in steps if isinstance(step, Offload)}


def least_with_tier(graph: Graph) -> int:
    """Return the bytes that no schedule does without, whatever is offloaded: those of one op, or of the outputs."""
    needs = [sum(map(graph.nbytes, set(graph.outputs) - set(graph.constants)))]
    for op in graph.ops:
        touched = {*op.inputs, *op.outputs} - set(op.consumes.values()) - set(graph.constants)
        needs.append(sum(map(graph.nbytes, touched)))
    return graph.constant_bytes + max(needs)


@dataclass
class _Known:
    """Plans with a tier that were found for a graph: what fits into a smaller tier fits into a larger one."""

    plans: list[tuple[int, str, Plan]] = field(default_factory=list)

    @classmethod
    def of(cls, graph: Graph) -> _Known:
        known: _Known = graph.__dict__.setdefault("_known_plans_with_tier", cls())
        return known

    def that_fit(self, budget: int, tier: Tier, planner: str) -> list[Plan]:
        """Those for smaller budgets or tiers of the same speed; that of the same question is left out."""
        found = []
        for for_budget, by, made in self.plans:
            assert made.tier is not None
            same = made.tier.bandwidth == tier.bandwidth and made.tier.latency == tier.latency
            smaller = for_budget <= budget and made.tier.capacity <= tier.capacity
            if same and smaller and by == planner and (for_budget, made.tier.capacity) != (budget, tier.capacity):
                found.append(made)
        return found
