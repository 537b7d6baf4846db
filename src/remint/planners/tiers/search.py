"""The cheapest plan with a tier, by search: which values are copied, at what price, and with how much room to spare.

What comes back from the tier and what is recomputed is chosen value by value (copied_graph.py). For a choice, the
planners without a tier find the schedule; transfers.py makes steps of it, and a replay with a clock says how long the
step takes. Choices are tried from none to all, in two orders: by what recomputing costs over what a transfer takes, and
by how long a value waits. The best one is then changed value by value. A fetch has a price that stands for how busy
transfers are. Room to spare is for fetches that begin early, and for bytes that leave late.

Without copies this is the search without a tier: a tier never makes a plan worse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import accumulate, combinations, pairwise, product
from random import Random

from remint.graph import Plan, Tier
from remint.graph.steps import Step, replay, with_consumed
from remint.planners.contract import Infeasible, Task
from remint.planners.decisions import sequence_of_decisions
from remint.planners.local_search import run, start
from remint.planners.methods.demand import first_schedule
from remint.planners.tiers.copied_graph import CopiedGraph
from remint.planners.tiers.transfers import steps_of, with_early_fetches

GAP = 1e-3
PARTS = (1.0, 0.5, 0.25, 0.75, 0.125)  # of all values that may be copied
PRICES = (0.3, 0.02, 1.0)  # of a fetch, in parts of its time
SPARE = (0.0, 1.0, 3.0)  # room, in values of the largest size
LEADS = (0.5, 3.0, math.inf)
MOVES, MOVES_PER_OP = 20_000, 200
CHANGES, MOST_SUBSETS = 400, 64  # of the best choice, one after the other; of few values, all choices


@dataclass(frozen=True)
class _Choice:
    copied: frozenset[str]
    price: float  # of a fetch
    spare: int  # bytes


@dataclass
class _Best:
    task: Task
    tier: Tier
    steps: list[Step] | None = None
    cost: float = math.inf
    bound: float = 0.0

    def offer(self, steps: Sequence[Step]) -> float:
        """Take the steps if they are right, and better; return what they take."""
        try:
            played = replay(self.task.graph, steps, self.tier)
        except ValueError:  # the copies do not fit into the tier
            return math.inf
        if played.peak > self.task.budget:
            return math.inf
        if played.cost < self.cost:
            self.steps, self.cost = list(steps), played.cost
            self.task.report("search", self.cost, self.bound)
        return played.cost

    def done(self) -> bool:
        return self.task.left() == 0 or self.cost <= self.bound * (1 + GAP)


def search_with_tier(
    task: Task,
    tier: Tier,
    bound: float,
    known: Sequence[Sequence[Step]],
    stays: Set[str] = frozenset(),
    *,
    anneal: bool,
) -> Plan:
    """Return the best plan that is found; `known` are steps to begin with, and values of `stays` are not copied.

    Raises `Infeasible` if there is none.
    """
    best = _Best(task, tier, bound=bound)
    for steps in known:
        best.offer(steps)
    orders = [[value for value in order if value not in stays] for order in _orders(task, tier)]
    others = [value for value in _others(task, orders[0]) if value not in stays]
    seen: dict[_Choice, float] = {}
    moves = min(MOVES, MOVES_PER_OP * len(task.graph.ops)) if anneal else 0

    def attempt(choice: _Choice) -> float:
        if choice not in seen:
            seen[choice] = _attempt(best, choice, moves)
        return seen[choice]

    for choice in _sweep(orders, task.graph.nbytes):
        attempt(choice)
        if best.done():
            break
    _climb(best, orders[0] + others, seen, attempt)
    if best.steps is None:
        raise Infeasible("no schedule inside the budget and the tier was found")
    return Plan.from_steps(task.graph, best.steps, tier=tier, bound=bound)


def _attempt(best: _Best, choice: _Choice, moves: int) -> float:
    """Plan with these copies; return how long the step takes, infinite if nothing fits."""
    task, tier = best.task, best.tier
    price = choice.price / float(tier.bandwidth)
    copied = CopiedGraph.of(task.graph, choice.copied, price)
    inner = replace(task, numbered=copied.numbered, budget=task.budget - choice.spare, listener=None, hint=None)
    least = math.inf
    for sequence in _sequences(inner, moves):
        steps = steps_of(copied, sequence, tier, task.budget)
        if steps is None:
            continue
        least = min(least, best.offer(steps))
        if choice.copied:
            early = (with_early_fetches(task.graph, steps, tier, task.budget, lead) for lead in LEADS)
            least = min(least, *map(best.offer, early))
    return least


def _sequences(task: Task, moves: int) -> Iterator[Sequence[int]]:
    if task.budget < 0:
        return
    first = first_schedule(task)
    if first is not None:
        yield first
    if moves and task.left() > 0:
        engine = start(task, first)
        run(task, engine, moves)
        if engine.feasible:
            try:
                yield with_consumed(task.graph, sequence_of_decisions(task.numbered, engine.best))
            except ValueError:  # it needs an input once more that was consumed for good
                return


def _orders(task: Task, tier: Tier) -> list[list[str]]:
    """Return the values that may be copied, first those that it pays for, in two ways of saying so."""
    graph, numbered = task.graph, task.numbered
    began = list(accumulate(numbered.cost, initial=0.0))
    waits: dict[str, float] = {}
    saves: dict[str, float] = {}
    for v, value in enumerate(numbered.values):
        made, nbytes = numbered.maker[v], numbered.nbytes[v]
        wait = max((began[b] - began[a + 1] for a, b in pairwise([made, *numbered.users[v]])), default=0.0)
        if nbytes and wait > 0:
            waits[value] = wait
            again = graph.ops[made].rematerializable
            saves[value] = numbered.cost[made] / tier.seconds(nbytes) if again else math.inf
    return [
        sorted(waits, key=lambda value: (-saves[value], -waits[value])),
        sorted(waits, key=lambda value: (-waits[value], -saves[value])),
    ]


def _others(task: Task, values: list[str]) -> list[str]:
    """Return what is used right after it is made, and can have to wait where ops run again in between."""
    numbered, first = task.numbered, set(values)
    return [
        value
        for v, value in enumerate(numbered.values)
        if numbered.nbytes[v] and numbered.users[v] and value not in first
    ]


def _sweep(orders: list[list[str]], nbytes: Callable[[str], int]) -> Iterator[_Choice]:
    """Yield choices from none to all, the ones that differ most first."""
    values = orders[0]
    yield _Choice(frozenset(), 1.0, 0)
    if not values:
        return
    largest = max(map(nbytes, values))
    for spare, price in sorted(product(SPARE, PRICES), key=lambda pair: SPARE.index(pair[0]) + PRICES.index(pair[1])):
        for part in PARTS:
            for order in orders if part < 1 else orders[:1]:
                count = math.ceil(part * len(order))
                yield _Choice(frozenset(order[:count]), price, round(spare * largest))


def _climb(best: _Best, values: list[str], seen: dict[_Choice, float], attempt: Callable[[_Choice], float]) -> None:
    """Change the best choice value by value; of few values, try all choices."""
    if not values or best.done():
        return
    if 2 ** len(values) <= MOST_SUBSETS:
        for count, price in product(range(len(values) + 1), PRICES):
            for few in combinations(values, count):
                for spare in (0, *sorted({best.task.graph.nbytes(value) for value in few})):
                    attempt(_Choice(frozenset(few), price, spare))
                    if best.done():
                        return
        return
    random = Random(best.task.seed)
    at = min(seen, key=lambda choice: seen[choice])
    largest = max(map(best.task.graph.nbytes, values))
    for _ in range(CHANGES):
        if best.done() or not math.isfinite(seen[at]):
            return
        change = random.random()
        copied, price, spare = at.copied, at.price, at.spare
        if change < 0.15:
            price = random.choice(PRICES)
        elif change < 0.3:
            spare = round(random.choice(SPARE) * largest * random.random())
        else:
            copied = copied.symmetric_difference(
                random.sample(values, random.choice((1, 1, 2, max(1, len(values) // 16))))
            )
        choice = _Choice(copied, price, spare)
        if attempt(choice) <= seen[at]:
            at = choice
