"""`chain`: exact dynamic programming where the graph is a chain of blocks.

Beaumont et al., Optimal checkpointing for heterogeneous chains (rotor), 2019. Per block there are two ways:
run it and store all that its backward part reads, or run over it and come back later. The programme is exact
for these choices, with bytes in steps of budget / 400, rounded up. We depart in what memory counts: gradients
of parameters stay, so that what is left shrinks during the backward phase; in
letting what turns out to be still there serve again (`tidy`); and in taking the chain from the
graph (blocks.py).

    cost[i][j][m]   least cost of the blocks i to j, forward and backward, with the input of i stored and
                    m steps of memory in use, that input included
"""

from __future__ import annotations

import numpy as np

from remint.graph import Plan
from remint.planners.chain_blocks import ChainBlock, find_blocks
from remint.planners.contract import Infeasible, Outcome, Task
from remint.planners.local_search import tidy

STEPS = 400
# The programme counts a block's input until its backward part is done, needed or not: schedules for somewhat
# more space may fit, and are tried.
SPACES = (1.0, 1.03, 1.06, 1.1, 1.15, 1.25)
MOST_BLOCKS = 80


def chain(task: Task) -> Outcome:
    """Solve the chain; raise if the graph is none."""
    numbered = task.numbered
    if numbered.turn == 0:
        return Outcome(tuple(range(len(numbered.cost))))
    if not all(op.rematerializable for op in task.graph.ops[: numbered.turn]):
        raise Infeasible("whole blocks run again, but a forward op of this graph must not run twice: use auto")
    blocks = find_blocks(numbered, MOST_BLOCKS)
    best: Plan | None = None
    least: Plan | None = None
    for factor in SPACES:
        table = _Table(blocks, int((task.budget - task.graph.constant_bytes) * factor))
        if np.isfinite(table.cost[0, len(blocks) - 1][0]):
            sequence: list[int] = []
            table.emit(0, len(blocks) - 1, 0, sequence)
            plan = Plan.from_sequence(task.graph, tidy(task, sequence))
            if least is None or plan.peak_bytes < least.peak_bytes:
                least = plan
            if plan.peak_bytes <= task.budget and (best is None or plan.cost < best.cost):
                best = plan
        if task.left() == 0:
            break
    if best is None:
        raise Infeasible("the chain has no schedule inside the budget", least.sequence if least else ())
    return Outcome(best.sequence)


class _Table:
    def __init__(self, blocks: list[ChainBlock], space: int) -> None:
        self.blocks = blocks
        self.step = max(1.0, space / STEPS)
        self.used = np.arange(STEPS + 1) * self.step
        self.space = space
        self.cost: dict[tuple[int, int], np.ndarray] = {}
        self.choice: dict[tuple[int, int], np.ndarray] = {}
        count = len(blocks)
        for length in range(count):
            for i in range(count - length):
                self._solve(i, i + length)

    def _steps(self, nbytes: int) -> int:
        return int(-(-nbytes // self.step)) if nbytes else 0

    def _shifted(self, row: np.ndarray, nbytes: int) -> np.ndarray:
        """`row` as seen with that many more bytes in use."""
        shift = self._steps(nbytes)
        moved = np.full(STEPS + 1, np.inf)
        if shift <= STEPS:
            moved[: STEPS + 1 - shift] = row[shift:]
        return moved

    def _solve(self, i: int, j: int) -> None:
        blocks, block = self.blocks, self.blocks[i]
        last = blocks[j]
        # What waits for the backward parts up to j while blocks are made again.
        waits = last.gradient_bytes + last.result_bytes if j + 1 < len(blocks) else 0
        stored = np.where(self.used + waits + block.store_peak <= self.space, block.cost, np.inf)
        if i < j:
            stored = stored + self._shifted(self.cost[i + 1, j], block.stored_bytes)
        fits = self.used + block.result_bytes + block.backward_peak <= self.space
        best = np.where(fits, stored, np.inf)
        choice = np.full(STEPS + 1, i)
        swept = 0.0
        peak = 0
        for k in range(i + 1, j + 1):
            before = blocks[k - 1]
            swept += before.cost
            peak = max(peak, before.sweep_peak + (before.input_bytes if k - 1 > i else 0))
            option = (
                np.where(self.used + waits + peak <= self.space, swept, np.inf)
                + self._shifted(self.cost[k, j], blocks[k].input_bytes)
                + self.cost[i, k - 1]
            )
            better = option < best
            best = np.where(better, option, best)
            choice = np.where(better, k, choice)
        self.cost[i, j], self.choice[i, j] = best, choice

    def emit(self, i: int, j: int, used: int, sequence: list[int]) -> None:
        """Append the ops of the best schedule of blocks i to j."""
        block = self.blocks[i]
        k = int(self.choice[i, j][used])
        if k == i:
            sequence.extend(block.forward)
            if i < j:
                self.emit(i + 1, j, used + self._steps(block.stored_bytes), sequence)
            sequence.extend(block.backward)
            return
        for b in range(i, k):
            sequence.extend(self.blocks[b].forward)
        self.emit(k, j, used + self._steps(self.blocks[k].input_bytes), sequence)
        self.emit(i, k - 1, used, sequence)
