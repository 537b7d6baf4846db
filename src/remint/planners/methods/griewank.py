"""`griewank` and `griewank-ap`: binomial schedules, which rematerialize a value several times to keep few of
them.

Griewank and Walther, Algorithm 799: Revolve, 2000. With c kept values and at most r passes over any step,
chains of (c + r choose c) steps can be reversed; the number c is swept and the cheapest schedule that fits is
returned. On graphs that are no chains a step is a forward op (linearised) or the run of ops up to an
articulation point (AP), as in Checkmate (MLSys 2020); what a kept step holds is every value that crosses its
end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from remint.graph import Plan
from remint.graph.numbered import NumberedGraph
from remint.planners.articulation_points import articulation_points
from remint.planners.contract import Infeasible, Outcome, Task
from remint.planners.decisions import sequence_of_kept

MOST_STAGES = 1500


def griewank(task: Task) -> Outcome:
    """Reverse the forward ops, in order, binomially."""
    return _sweep(task, list(range(task.numbered.turn)), "griewank")


def griewank_ap(task: Task) -> Outcome:
    """Reverse the runs of ops between articulation points binomially."""
    return _sweep(task, articulation_points(task.numbered), "griewank-ap")


def _sweep(task: Task, points: Sequence[int], name: str) -> Outcome:
    numbered = task.numbered
    best: tuple[float, tuple[int, ...]] | None = None
    least: tuple[float, tuple[int, ...]] | None = None
    if len(numbered.cost) > MOST_STAGES:
        raise Infeasible(f"{name} is for graphs of up to {MOST_STAGES} ops: use search or auto")
    slots = sorted({max(1, round(len(points) ** (e / 10))) for e in range(11)})
    for count in slots:
        sequence = sequence_of_kept(numbered, _kept(numbered, points, count))
        plan = Plan.from_sequence(task.graph, sequence)
        if plan.peak_bytes <= task.budget and (best is None or plan.cost < best[0]):
            best = plan.cost, tuple(sequence)
        if least is None or plan.peak_bytes < least[0]:
            least = plan.peak_bytes, tuple(sequence)
        if task.left() == 0:
            break
    if best is None:
        raise Infeasible(f"{name} has no schedule inside the budget", least[1] if least else ())
    return Outcome(best[1])


def _kept(numbered: NumberedGraph, points: Sequence[int], slots: int) -> list[set[int]]:
    """Return per stage what is resident: for the backward phase, the steps revolve keeps, and gradients."""
    n, turn = len(numbered.cost), numbered.turn
    crossing = [_crossing(numbered, i) for i in points]
    # For each step, counted from the last, the steps kept while it is reversed.
    kept_steps = dict(revolve(len(points), slots))
    needs: dict[int, int] = {}
    for t in range(turn, n):
        reads = [numbered.maker[v] for v in numbered.inputs[t] if numbered.maker[v] < turn]
        if reads:
            newest = max(reads)
            needs[t] = sum(1 for p in points if p < newest)
    kept: list[set[int]] = [set() for _ in range(n + 1)]
    results = set(numbered.results)
    for v, users in enumerate(numbered.users):
        made = numbered.maker[v]
        if not users:
            continue
        fixed = not numbered.graph.ops[made].rematerializable
        stays = made >= turn or v in results
        last = n if fixed else users[-1] if stays else max([made, *(u for u in users if u < turn)])
        for t in range(made + 1, last + 1):
            kept[t].add(v)
    step = len(points) - 1
    for t in range(turn, n + 1):
        if t in needs:
            step = min(step, needs[t])
        for k in kept_steps.get(max(step, 0), ()):
            kept[t] |= crossing[k]
    # The steps kept for the first reversal are kept from the time they are made.
    for k in kept_steps.get(len(points) - 1, ()):
        for v in crossing[k]:
            for t in range(numbered.maker[v] + 1, turn + 1):
                kept[t].add(v)
    return kept


def _crossing(numbered: NumberedGraph, op: int) -> frozenset[int]:
    turn = numbered.turn
    return frozenset(
        v
        for v, users in enumerate(numbered.users)
        if (numbered.maker[v] <= op and any(op < u < turn for u in users)) or (users and numbered.maker[v] == op)
    )


def revolve(steps: int, slots: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield, from the last step to the first, the steps whose ends are kept while it is reversed."""
    stack: list[int] = []
    start = 0
    for step in range(steps - 1, -1, -1):
        while stack and stack[-1] >= step:
            stack.pop()
        start = stack[-1] + 1 if stack else 0
        while len(stack) < slots and step - start > 1:
            place = start + _split(step - start, slots - len(stack)) - 1
            place = min(max(place, start), step - 1)
            stack.append(place)
            start = place + 1
        yield step, tuple(stack)


def _split(steps: int, slots: int) -> int:
    """How far to go before keeping the next of `slots` steps: the least distance that is optimal."""
    passes = 0
    while math.comb(slots + passes, slots) < steps:
        passes += 1
    least = math.comb(slots + passes - 2, slots) if passes > 1 else 1
    return max(1, least, steps - math.comb(slots + passes - 1, slots - 1))
