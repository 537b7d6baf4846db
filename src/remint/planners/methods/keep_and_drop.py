"""`keep` and `drop`: the two ends of every comparison.

`keep` runs every op once. `drop` keeps no forward value across a stage of the backward phase: each is made
again from constants whenever it is read, which is the checkpoint-nothing end of Checkmate's figures (MLSys
2020). Gradients stay until their last use in both, as in any framework.
"""

from __future__ import annotations

from remint.planners.contract import Outcome, Task
from remint.planners.decisions import sequence_of_kept


def keep(task: Task) -> Outcome:
    """Keep everything until its last use."""
    return Outcome(tuple(range(len(task.graph.ops))), task.graph.cost)


def drop(task: Task) -> Outcome:
    """Keep nothing of the forward phase but constants, what must not run twice, and outputs of the graph."""
    numbered = task.numbered
    n = len(numbered.cost)
    kept: list[set[int]] = [set() for _ in range(n + 1)]
    results = set(numbered.results)
    for v, users in enumerate(numbered.users):
        made = numbered.maker[v]
        if not users:
            continue
        stays = made >= numbered.turn or v in results or not task.graph.ops[made].rematerializable
        forward = max([made, *(u for u in users if u < numbered.turn)])
        # What must not run twice may be read by a rematerialization at any time, so it stays to the end.
        last = n if stays and not task.graph.ops[made].rematerializable else users[-1] if stays else forward
        for t in range(made + 1, last + 1):
            kept[t].add(v)
    return Outcome(tuple(sequence_of_kept(numbered, kept)))
