"""`verify` replays a plan and knows no planner."""

from __future__ import annotations

import math

from remint.errors import BudgetError
from remint.graph.graph import Graph
from remint.graph.plan import Plan
from remint.graph.steps import replay
from remint.units import format_bytes, parse_budget


def verify(graph: Graph, plan: Plan, budget: int | float | str | None = None) -> None:
    """Replay `plan` on `graph` and raise unless it is right and, where one is given, inside the budget.

    Checked: every op runs, once if it must not run twice; every read finds its value; every freed value is
    resident and no constant; the outputs are resident at the end; the peak, counted at each op before
    anything is freed, and the cost are what the plan says. With a tier: what is fetched has a copy there, the copies
    never take more than the tier has, bytes on their way count, and the cost has the time that ops and frees wait for
    transfers.
    """
    played = replay(graph, plan.steps, plan.tier)
    cost, peak = played.cost, played.peak
    if not math.isclose(cost, plan.cost, rel_tol=1e-9, abs_tol=1e-15):
        raise ValueError(f"the plan says it costs {plan.cost!r} s, its steps cost {cost!r} s")
    if peak != plan.peak_bytes:
        raise ValueError(f"the plan says its peak is {plan.peak_bytes} B, its steps peak at {peak} B")
    if plan.bound > cost * (1 + 1e-9):
        raise ValueError(f"the plan's bound of {plan.bound!r} s is above its cost of {cost!r} s")
    if budget is not None:
        budget_bytes = parse_budget(budget, peak_bytes=graph.peak_bytes)
        if peak > budget_bytes:
            raise BudgetError(
                f"the plan peaks at {format_bytes(peak)}, which is {peak - budget_bytes} B above the budget "
                f"of {format_bytes(budget_bytes)}: plan again for this budget",
                min_budget_bytes=graph.min_budget_bytes,
                known_budget_bytes=peak,
            )
