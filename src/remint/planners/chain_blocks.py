"""A graph as a chain of blocks: forward blocks joined by single values, and their backward parts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from remint.graph.numbered import Problem
from remint.planners.contract import Infeasible
from remint.planners.methods.chen import articulation_points


@dataclass(frozen=True)
class Block:
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


def find_blocks(problem: Problem, most: int) -> list[Block]:
    """Return the chain, with neighbours merged until there are at most `most` blocks; raise if it is none."""
    ends = [p for p in articulation_points(problem) if p < problem.turn - 1]
    while len(ends) >= most:
        ends = ends[1::2]
    bounds = [0, *(e + 1 for e in ends), problem.turn]
    forward = [tuple(range(a, b)) for a, b in pairwise(bounds) if b > a]
    if not forward:
        raise Infeasible("the graph has no forward phase to cut into blocks: use auto")
    block_of = {i: b for b, ops in enumerate(forward) for i in ops}
    joint = _joints(problem, forward)
    backward = _backward_parts(problem, block_of, joint, len(forward))
    return [_block(problem, forward, backward, joint, b) for b in range(len(forward))]


def _joints(problem: Problem, forward: list[tuple[int, ...]]) -> list[int | None]:
    """Per block, the value that the next block reads of it."""
    joints: list[int | None] = []
    for ops in forward:
        crossing = [
            v
            for i in ops
            for v in problem.outputs[i]
            if problem.nbytes[v] and any(ops[-1] < u < problem.turn for u in problem.users[v])
        ]
        if len(crossing) > 1:
            raise Infeasible("the graph is no chain of blocks: use auto")
        joints.append(crossing[0] if crossing else None)
    return joints


def _backward_parts(
    problem: Problem, block_of: dict[int, int], joint: list[int | None], count: int
) -> list[tuple[int, ...]]:
    parts: list[list[int]] = [[] for _ in range(count)]
    now = count - 1
    for t in range(problem.turn, len(problem.cost)):
        low, high = 0, count - 1
        for v in problem.inputs[t]:
            if problem.maker[v] >= problem.turn or not problem.nbytes[v]:
                continue
            b = block_of[problem.maker[v]]
            low = max(low, b)
            high = min(high, b + 1 if v == joint[b] else b)
        if low > high or low > now:
            raise Infeasible("the backward phase does not go through the blocks one by one: use auto")
        now = min(now, high)
        parts[now].append(t)
    return [tuple(part) for part in parts]


def _block(
    problem: Problem,
    forward: list[tuple[int, ...]],
    backward: list[tuple[int, ...]],
    joint: list[int | None],
    b: int,
) -> Block:
    turn, n = problem.turn, len(problem.cost)
    results = set(problem.results)
    size = problem.nbytes
    before = joint[b - 1] if b else None
    own = {v for i in forward[b] for v in problem.outputs[i]}
    stored = {v for v in own if v == joint[b] or any(u >= turn for u in problem.users[v])}
    last = {v: max([-1, *(u for u in problem.users[v] if u < turn)]) for v in own}

    def forward_peak(kept: set[int]) -> int:
        now = peak = 0
        for i in forward[b]:
            now += sum(size[v] for v in problem.outputs[i])
            peak = max(peak, now)
            gone = {v for v in (*problem.inputs[i], *problem.outputs[i]) if v in own and last[v] <= i}
            now -= sum(size[v] for v in gone - kept)
        return peak

    def waiting(t: int) -> int:
        return sum(
            size[v]
            for v in range(len(size))
            if turn <= problem.maker[v] < t and v not in results and problem.users[v] and problem.users[v][-1] >= t
        )

    first = backward[b][0] if backward[b] else min((p[0] for p in backward[:b] if p), default=n)
    now = sum(size[v] for v in stored) + waiting(first)
    peak = now
    for t in backward[b]:
        now += sum(size[v] for v in problem.outputs[t])
        peak = max(peak, now)
        for v in {*problem.inputs[t], *problem.outputs[t]}:
            done = not problem.users[v] or problem.users[v][-1] <= t
            if done and v not in results and (v in stored or problem.maker[v] >= turn):
                now -= size[v]
    earlier = sum(size[v] for v in results if turn <= problem.maker[v] < first)
    forward_results = sum(size[v] for v in results if problem.maker[v] < turn and v not in own)
    return Block(
        forward[b],
        backward[b],
        sum(problem.cost[i] for i in forward[b]),
        size[before] if before is not None else 0,
        sum(size[v] for v in stored),
        forward_peak({joint[b]} if joint[b] is not None else set()),  # type: ignore[arg-type]
        forward_peak(stored),
        peak,
        waiting(first),
        earlier + forward_results,
    )
