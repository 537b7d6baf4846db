"""Bounds from one op at a time, by minimum cuts: milliseconds for a network, under a second for 20,000 ops.

While an op runs for the first time, values that are needed later are kept, or recomputed from what is kept. With a
price on bytes in place of the budget (Lagrangian relaxation) the cheapest choice is a minimum cut; the best price gives
the linear relaxation of the program of refinement.py with one group cut out, without a program. Min-cut partitioners
(as that of PyTorch) minimise the bytes between two phases by such a cut; here it bounds the cost of every
schedule whose first runs are in the graph's order. A search begins from what the cut drops.
"""

from __future__ import annotations

import math

from remint._core import cut_bound
from remint.planners.contract import Task
from remint.planners.decisions import Decision

STAGES = 64  # those at which most is held when nothing is dropped
MOST_STAGE_OPS = 200_000  # stages times ops: the effort grows with both


def best_cut(task: Task) -> tuple[float, list[Decision]]:
    """Return a cost that no schedule is below, infinite if none fits, and what to drop at the op that proves it."""
    numbered, n = task.numbered, len(task.numbered.cost)
    best, decisions = 0.0, list[Decision]()
    for t in most_in_use(task, max(1, min(STAGES, MOST_STAGE_OPS // max(1, n)))):
        seconds = task.left()
        if seconds <= 0:
            break
        bound, dropped = cut_bound(numbered.native, float(task.budget), t, seconds)
        if bound > best:
            best, decisions = bound, [(True, v, t) for v in dropped]
        if math.isinf(bound):
            break
    # A part in 10^9 less, for what was rounded on the way.
    return task.graph.cost + best * (1 - 1e-9), decisions


def most_in_use(task: Task, count: int) -> list[int]:
    """Return up to so many ops at which the budget does not hold what is there when nothing is dropped, worst first."""
    memory = _memory(task)
    worst = sorted(range(len(memory)), key=lambda t: -memory[t])[:count]
    return [t for t in worst if memory[t] > task.budget]


def _memory(task: Task) -> list[int]:
    """Bytes at the first run of each op when nothing is dropped."""
    numbered, n = task.numbered, len(task.numbered.cost)
    change = [0] * (n + 2)
    for v, users in enumerate(numbered.users):
        change[numbered.maker[v]] += numbered.nbytes[v]
        change[(users[-1] if users else numbered.maker[v]) + 1] -= numbered.nbytes[v]
    memory, now = [], task.graph.constant_bytes
    for t in range(n):
        now += change[t]
        memory.append(now)
    return memory
