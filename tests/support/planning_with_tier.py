"""The cheapest schedule of a tiny graph with a tier, by Dijkstra's algorithm. It shares no code with `verify`."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import NamedTuple

from remint.graph import Graph, Tier

Times = tuple[tuple[str, float], ...]


class State(NamedTuple):
    """What is there. Times are how long from now, and left out when over."""

    frontier: int
    resident: frozenset[str]
    copies: frozenset[str]
    idle: float  # until transfers have ended
    arrives: Times
    written: Times

    def later(self, seconds: float) -> State:
        def left(times: Times) -> Times:
            return tuple((value, at - seconds) for value, at in times if at > seconds)

        return self._replace(idle=max(0.0, self.idle - seconds), arrives=left(self.arrives), written=left(self.written))


def cheapest_with_tier(graph: Graph, budget: int, tier: Tier, limit: float = float("inf")) -> float | None:
    """The least time of any schedule with first runs in the graph's order; None if none takes `limit` or less."""
    start = State(0, frozenset(), frozenset(), 0.0, (), ())
    rest = [sum(op.cost for op in graph.ops[k:]) for k in range(len(graph.ops) + 1)]
    results = set(graph.outputs) - set(graph.constants)
    least = {start: 0.0}
    order = itertools.count()
    heap: list[tuple[float, int, float, State | None]] = [(rest[0], next(order), 0.0, start)]
    while heap:
        _, _, time, state = heapq.heappop(heap)
        if state is None:
            return time
        if time > least[state]:
            continue
        if state.frontier == len(graph.ops) and results <= state.resident:
            end = time + max([0.0, *(at for value, at in state.arrives if value in results)])
            heapq.heappush(heap, (end, next(order), end, None))
        for seconds, following in _moves(graph, budget, tier, state):
            now = time + seconds
            if now < least.get(following, float("inf")) and now + rest[following.frontier] <= limit:
                least[following] = now
                heapq.heappush(heap, (now + rest[following.frontier], next(order), now, following))
    return None


def _moves(graph: Graph, budget: int, tier: Tier, state: State) -> Iterator[tuple[float, State]]:
    size = {value: nbytes for op in graph.ops for value, nbytes in op.outputs.items()}
    room = budget - sum(graph.constants.values()) - sum(size[value] for value in state.resident)
    arrives, written = dict(state.arrives), dict(state.written)
    for k in range(min(state.frontier + 1, len(graph.ops))):
        op = graph.ops[k]
        reads = {value for value in op.inputs if value not in graph.constants}
        if not reads <= state.resident or (k < state.frontier and not op.rematerializable):
            continue
        if k < state.frontier and state.resident.issuperset(op.outputs):
            continue
        if sum(size[value] for value in op.outputs if value not in state.resident) > room:
            continue
        seconds = max([0.0, *(arrives.get(value, 0.0) for value in reads)]) + op.cost
        now = state._replace(frontier=max(state.frontier, k + 1), resident=state.resident.union(op.outputs))
        yield seconds, now.later(seconds)
    for value in sorted(state.resident):
        wait = max(arrives.get(value, 0.0), written.get(value, 0.0))
        yield wait, state._replace(resident=state.resident - {value}).later(wait)
        used = sum(size[copy] for copy in state.copies)
        if size[value] and value not in state.copies and used + size[value] <= tier.capacity:
            wait = arrives.get(value, 0.0)
            now = state.later(wait)
            idle = now.idle + tier.seconds(size[value])
            times = tuple(sorted([*now.written, (value, idle)]))
            yield wait, now._replace(copies=now.copies | {value}, idle=idle, written=times)
    full = sum(size.values()) > tier.capacity
    for value in sorted(state.copies):
        if full and value not in written:
            yield 0.0, state._replace(copies=state.copies - {value})
        if value not in state.resident and size[value] <= room:
            idle = state.idle + tier.seconds(size[value])
            times = tuple(sorted([*state.arrives, (value, idle)]))
            yield 0.0, state._replace(resident=state.resident | {value}, idle=idle, arrives=times)
