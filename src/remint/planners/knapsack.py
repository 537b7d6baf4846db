"""A bound that takes milliseconds for any graph: what must go while one op runs first has to be made again.

When op t runs for the first time, values made before and read by later first runs cannot all be resident if
they are more than the budget holds. Whatever is not runs its maker again. Which makers at least is a knapsack
problem, and its linear relaxation (Dantzig, 1957) is solved by taking the cheapest per byte first. It holds for
every schedule whose first runs are in the graph's order.
"""

from __future__ import annotations

import math

import numpy as np

from remint.problem import Problem

STAGES = 48  # those at which most waits


def knapsack_bound(problem: Problem, budget: int) -> float:
    """Return a cost below which there is no schedule; infinite if no schedule fits."""
    n = len(problem.cost)
    if n == 0:
        return 0.0
    cost = np.array(problem.cost)
    again = np.array([op.rematerializable for op in problem.graph.ops])
    maker = np.array(problem.maker, dtype=int)
    nbytes = np.array(problem.nbytes, dtype=float)
    last = np.array([users[-1] if users else -1 for users in problem.users], dtype=int)
    change = np.zeros(n + 2)
    np.add.at(change, maker, nbytes)
    np.add.at(change, np.maximum(last, maker) + 1, -nbytes)
    memory = np.cumsum(change)[: n + 1] + problem.graph.constant_bytes
    worst = 0.0
    for t in np.argsort(-memory, kind="stable")[:STAGES]:
        missing = memory[t] - budget
        if missing <= 0:
            break
        waits = (maker < t) & (last > t)
        waits[problem.inputs[t] if t < n else problem.results] = False
        freed = np.bincount(maker[waits], weights=nbytes[waits], minlength=n)
        items = np.flatnonzero((freed > 0) & again)
        if freed[items].sum() < missing:
            return math.inf
        items = items[np.argsort(cost[items] / freed[items], kind="stable")]
        total = np.cumsum(freed[items])
        full = int(np.searchsorted(total, missing))
        rest = missing - (total[full - 1] if full else 0.0)
        worst = max(worst, float(cost[items[:full]].sum() + cost[items[full]] * rest / freed[items[full]]))
    # A part in 10^9 less, for what was rounded on the way.
    return problem.graph.cost + worst * (1 - 1e-9)
