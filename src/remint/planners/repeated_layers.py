"""Which ops stand in the same place of repeated layers, found from the graph alone.

Colour refinement (Weisfeiler and Leman, 1968) over a few rounds: two ops are twins if they cost the same,
make the same bytes, and so do their neighbours, and the neighbours of these.
"""

from __future__ import annotations

from remint.graph.numbered import NumberedGraph


def twins(numbered: NumberedGraph, rounds: int = 3) -> list[int]:
    """Return per op a number that its twins share, or -1 if it has none."""
    n = len(numbered.cost)
    results = set(numbered.results)
    colour: list[int] = [
        hash(
            (
                numbered.cost[i],
                tuple((numbered.nbytes[v], v in results, len(numbered.users[v])) for v in numbered.outputs[i]),
                len(numbered.inputs[i]),
            )
        )
        for i in range(n)
    ]
    for _ in range(rounds):
        colour = [
            hash(
                (
                    colour[i],
                    tuple(colour[numbered.maker[v]] for v in numbered.inputs[i]),
                    tuple(tuple(colour[u] if u < n else 0 for u in numbered.users[v]) for v in numbered.outputs[i]),
                )
            )
            for i in range(n)
        ]
    groups: dict[int, list[int]] = {}
    for i, c in enumerate(colour):
        groups.setdefault(c, []).append(i)
    twin = [-1] * n
    for number, group in enumerate(g for g in groups.values() if len(g) > 1):
        for i in group:
            twin[i] = number
    return twin
