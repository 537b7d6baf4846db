"""A bound on the time of a step with a tier: what the first run of one op leaves room for.

While op t runs for the first time, whatever is needed later is kept, recomputed after it, or in the tier and fetched
after it. Of the bytes F that are fetched, all were written before op t began, as they are not resident at it. There is
one transfer at a time. So with a the cost of the ops before t, b of those after it, R of what is recomputed:

    time ≥ max(a, F / bandwidth) + cost of t + max(b + R, F / bandwidth)

A maximum is at least any weighted mean of the two. That leaves a price on fetched bytes, and the cost of runs at a part
of its worth. To keep a byte and to fetch it are then the same choice at two prices, so that the cheapest choice is the
minimum cut of cut_bound.py at the lower one. A price above that of fetching is allowed for as many bytes as the tier
has. Every choice of weights and prices gives a bound; a few are tried for each op.
"""

from __future__ import annotations

import math
from itertools import accumulate

from remint._core import cuts_at_prices
from remint.graph import Tier
from remint.planners.contract import Task
from remint.planners.cut_bound import most_in_use

STAGES, MOST_STAGE_OPS = 24, 24_000  # ops that are looked at; and times the ops of the graph
# Prices per byte, as powers of two: around the cost of all ops over all bytes, and around that of a transfer.
RECOMPUTED, FETCHED = range(-6, 9), range(-6, 4)


def bound_with_tier(task: Task, tier: Tier) -> float:
    """Return a time that no schedule is below; infinite if none fits."""
    numbered, base, bandwidth = task.numbered, task.graph.cost, float(tier.bandwidth)
    before = list(accumulate(numbered.cost, initial=0.0))
    mean = base / max(1, sum(numbered.nbytes))
    prices = [*(mean * 2.0**k for k in RECOMPUTED), *(2.0**k / bandwidth for k in FETCHED)]
    best = base
    for t in most_in_use(task, max(2, min(STAGES, MOST_STAGE_OPS // max(1, len(numbered.cost))))):
        seconds = task.left()
        if seconds <= 0:
            break
        cuts = cuts_at_prices(numbered.native, float(task.budget), t, prices, seconds)
        if cuts and math.isinf(cuts[0]):
            return math.inf
        own = numbered.cost[t]
        after = max(0.0, base - before[t] - own)
        for price, cut in zip(prices, cuts, strict=False):
            best = max(best, _time(before[t], own, after, price, cut, tier))
    # A part in 10^9 less, for what was rounded on the way.
    return base + (best - base) * (1 - 1e-9)


def _time(before: float, own: float, after: float, price: float, cut: float, tier: Tier) -> float:
    """Return the best bound of one cut, over the weights of transfers before and after the op."""
    best, transfer = 0.0, price * float(tier.bandwidth)  # the price, in those of a transfer
    for early in (0.0, min(1.0, transfer), 1.0):
        # With less weight than that on transfers after the op, a fetched byte is paid below the price.
        least = min(1.0, max(0.0, (transfer - early) / (1 + transfer)))
        for late in (0.0, least):
            below = max(0.0, (1 - late) * price - (early + late) / float(tier.bandwidth)) * tier.capacity
            best = max(best, (1 - early) * before + own + (1 - late) * (after + cut) - below)
    return best
