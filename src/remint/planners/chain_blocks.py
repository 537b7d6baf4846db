"""A graph as a chain of blocks: forward blocks joined by single values, and their backward parts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from remint.graph.numbered import NumberedGraph
from remint.planners.articulation_points import articulation_points
from remint.planners.contract import Infeasible


@dataclass(frozen=True)
class ChainBlock:
    """One block. Peaks are beyond what is stored before the block and what earlier parts left."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    cost: float  # of its forward ops
    input_bytes: int  # the value that joins it to the block before
    stored_bytes: int  # what its backward part and the next block read of it
    sweep_peak: int  # running it forward, keeping its last value only
    store_peak: int  # running it forward, keeping all that is stored
    backward_peak: int  # running its backward part, all that is stored included
    gradient_bytes: int  # backward values that wait while blocks up to this one are made again
    result_bytes: int  # outputs of the graph made by the backward parts of later blocks


def find_blocks(numbered: NumberedGraph, most: int) -> list[ChainBlock]:
    """Return the chain, with neighbours merged until there are at most `most` blocks; raise if it is none."""
    ends = [p for p in articulation_points(numbered) if p < numbered.turn - 1]
    while len(ends) >= most:
        ends = ends[1::2]
    bounds = [0, *(e + 1 for e in ends), numbered.turn]
    forward = [tuple(range(a, b)) for a, b in pairwise(bounds) if b > a]
    if not forward:
        raise Infeasible("the graph has no forward phase to cut into blocks: use auto")
    block_of = {i: b for b, ops in enumerate(forward) for i in ops}
    joint = _joints(numbered, forward)
    backward = _backward_parts(numbered, block_of, joint, len(forward))
    return [_block(numbered, forward, backward, joint, b) for b in range(len(forward))]


def _joints(numbered: NumberedGraph, forward: list[tuple[int, ...]]) -> list[int | None]:
    """Per block, the value that the next block reads of it."""
    joints: list[int | None] = []
    for ops in forward:
        crossing = [
            v
            for i in ops
            for v in numbered.outputs[i]
            if numbered.nbytes[v] and any(ops[-1] < u < numbered.turn for u in numbered.users[v])
        ]
        if len(crossing) > 1:
            raise Infeasible("the graph is no chain of blocks: use auto")
        joints.append(crossing[0] if crossing else None)
    return joints


def _backward_parts(
    numbered: NumberedGraph, block_of: dict[int, int], joint: list[int | None], count: int
) -> list[tuple[int, ...]]:
    parts: list[list[int]] = [[] for _ in range(count)]
    now = count - 1
    for t in range(numbered.turn, len(numbered.cost)):
        low, high = 0, count - 1
        for v in numbered.inputs[t]:
            if numbered.maker[v] >= numbered.turn or not numbered.nbytes[v]:
                continue
            b = block_of[numbered.maker[v]]
            low = max(low, b)
            high = min(high, b + 1 if v == joint[b] else b)
        if low > high or low > now:
            raise Infeasible("the backward phase does not go through the blocks one by one: use auto")
        now = min(now, high)
        parts[now].append(t)
    return [tuple(part) for part in parts]


def _block(
    numbered: NumberedGraph,
    forward: list[tuple[int, ...]],
    backward: list[tuple[int, ...]],
    joint: list[int | None],
    b: int,
) -> ChainBlock:
    turn, n = numbered.turn, len(numbered.cost)
    results = set(numbered.results)
    size = numbered.nbytes
    before = joint[b - 1] if b else None
    own = {v for i in forward[b] for v in numbered.outputs[i]}
    stored = {v for v in own if v == joint[b] or any(u >= turn for u in numbered.users[v])}
    last = {v: max([-1, *(u for u in numbered.users[v] if u < turn)]) for v in own}

    def forward_peak(kept: set[int]) -> int:
        now = peak = 0
        for i in forward[b]:
            now += sum(size[v] for v in numbered.outputs[i])
            peak = max(peak, now)
            gone = {v for v in (*numbered.inputs[i], *numbered.outputs[i]) if v in own and last[v] <= i}
            now -= sum(size[v] for v in gone - kept)
        return peak

    def waiting(t: int) -> int:
        return sum(
            size[v]
            for v in range(len(size))
            if turn <= numbered.maker[v] < t and v not in results and numbered.users[v] and numbered.users[v][-1] >= t
        )

    first = backward[b][0] if backward[b] else min((p[0] for p in backward[:b] if p), default=n)
    now = sum(size[v] for v in stored) + waiting(first)
    peak = now
    for t in backward[b]:
        now += sum(size[v] for v in numbered.outputs[t])
        peak = max(peak, now)
        for v in {*numbered.inputs[t], *numbered.outputs[t]}:
            done = not numbered.users[v] or numbered.users[v][-1] <= t
            if done and v not in results and (v in stored or numbered.maker[v] >= turn):
                now -= size[v]
    earlier = sum(size[v] for v in results if turn <= numbered.maker[v] < first)
    forward_results = sum(size[v] for v in results if numbered.maker[v] < turn and v not in own)
    return ChainBlock(
        forward[b],
        backward[b],
        sum(numbered.cost[i] for i in forward[b]),
        size[before] if before is not None else 0,
        sum(size[v] for v in stored),
        forward_peak({joint[b]} if joint[b] is not None else set()),  # type: ignore[arg-type]
        forward_peak(stored),
        peak,
        waiting(first),
        earlier + forward_results,
    )
