"""Graphs for the planning tests, and an exhaustive search that shares no code with any planner."""

from __future__ import annotations

import heapq
import itertools
import random

from hypothesis import strategies as st

from remint.graph import Graph, Op


def unit_chain(layers: int) -> Graph:
    """`layers` unit ops forward, a loss, `layers` unit ops backward, each reads its layer's output."""
    ops = [Op(f"f{i}", 1, (f"x{i - 1}",) if i else (), {f"x{i}": 1}) for i in range(layers)]
    ops.append(Op("loss", 1, (f"x{layers - 1}",), {f"g{layers}": 1}))
    ops += [Op(f"b{i}", 1, (f"x{i}", f"g{i + 1}"), {f"g{i}": 1}) for i in reversed(range(layers))]
    return Graph(tuple(ops), {}, ("g0",))


def random_graph(seed: int, most_ops: int = 7, most_values: int = 9) -> Graph:
    """A connected random graph: several outputs per op, ops that must not run twice, values without bytes."""
    r = random.Random(seed)
    count = r.randint(1, most_ops)
    several = r.random() < 0.5
    values: list[str] = []
    ops = []
    for i in range(count):
        reads = r.sample(values, min(len(values), r.randint(1, 3)))
        left = most_values - len(values) - (count - i - 1)
        made = {f"v{i}.{k}": r.choice((0, 1, 2, 3, 5, 8)) for k in range(min(left, 2 if several else 1))}
        ops.append(Op(f"op{i}", r.randint(1, 9), (*reads, "c"), made, r.random() > 0.15))
        values += made
    results = r.sample(values, r.randint(1, min(3, len(values))))
    return Graph(tuple(ops), {"c": r.randint(0, 3)}, tuple(results))


def training_graph(seed: int) -> Graph:
    """A chain with skips and its backward phase, with gradients that stay."""
    r = random.Random(seed)
    layers = r.randint(2, 9)
    ops, size = [], [r.randint(1, 9) for _ in range(layers + 1)]
    skip = [i > 1 and r.random() < 0.4 for i in range(layers)]
    for i in range(layers):
        reads = ("x",) if i == 0 else (f"a{i - 1}", f"a{i - 2}") if skip[i] else (f"a{i - 1}",)
        ops.append(Op(f"f{i}", r.randint(1, 9), (*reads, f"w{i}"), {f"a{i}": size[i], f"s{i}": r.choice((0, 4))}))
    ops.append(Op("loss", 1, (f"a{layers - 1}",), {"l": 0, f"g{layers}": size[layers - 1]}))
    for i in reversed(range(layers)):
        reads = (f"g{i + 1}", f"s{i}", f"w{i}", f"a{i - 1}" if i else "x")
        ops.append(Op(f"b{i}", r.randint(1, 9), reads, {f"g{i}": size[max(i - 1, 0)], f"d{i}": r.randint(1, 3)}))
    constants = {"x": size[0]} | {f"w{i}": r.randint(0, 3) for i in range(layers)}
    return Graph(tuple(ops), constants, ("l", *(f"d{i}" for i in range(layers))))


@st.composite
def graphs(draw: st.DrawFn, most_ops: int = 24) -> Graph:
    return random_graph(draw(st.integers(0, 10**9)), most_ops, 2 * most_ops)


def cheapest(graph: Graph, budget: int, *, any_order: bool = False) -> float | None:
    """The least cost of any schedule of the class, by Dijkstra's algorithm over what is resident.

    In `any_order`, ops that ran before may run again between two first runs in any order, any number of times.
    """
    n = len(graph.ops)
    results = set(graph.outputs) - set(graph.constants)
    start = (0, -1, frozenset[str]())
    least: dict[tuple[int, int, frozenset[str]], float] = {start: 0.0}
    heap: list[tuple[float, int, tuple[int, int, frozenset[str]]]] = [(0.0, 0, start)]
    order = itertools.count(1)
    while heap:
        cost, _, state = heapq.heappop(heap)
        if cost > least[state]:
            continue
        frontier, last, resident = state
        if frontier == n and results <= resident:
            return cost
        for k in range(last + 1, min(frontier + 1, n)):
            op = graph.ops[k]
            if k < frontier and not op.rematerializable:
                continue
            reads = {v for v in op.inputs if v not in graph.constants}
            if not reads <= resident:
                continue
            place = (frontier + 1, -1) if k == frontier else (frontier, -1 if any_order else k)
            # Whatever is let go is let go just before an op that has no room for it.
            rest = sorted(resident - reads - set(op.outputs))
            for size in range(len(rest) + 1):
                for kept in itertools.combinations(rest, size):
                    now = reads.union(op.outputs, kept)
                    if graph.constant_bytes + sum(graph.nbytes(v) for v in now) > budget:
                        continue
                    following = (*place, frozenset(now))
                    if cost + op.cost < least.get(following, float("inf")):
                        least[following] = cost + op.cost
                        heapq.heappush(heap, (cost + op.cost, next(order), following))
    return None
