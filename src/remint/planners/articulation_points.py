"""Where the forward phase of a graph can be cut so that a single value crosses the cut."""

from __future__ import annotations

from remint.graph.numbered import NumberedGraph


def articulation_points(numbered: NumberedGraph) -> list[int]:
    """Return the forward ops after which a single value carries all that later forward ops read."""
    turn = numbered.turn
    change = [0] * (turn + 2)
    for v, users in enumerate(numbered.users):
        forward = [u for u in users if u < turn]
        if forward and numbered.maker[v] < turn and numbered.nbytes[v]:
            change[numbered.maker[v]] += 1
            change[forward[-1]] -= 1
    points, crossing = [], 0
    for i in range(turn):
        crossing += change[i]
        if crossing == 1:
            points.append(i)
    return points
