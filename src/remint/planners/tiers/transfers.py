"""From a schedule of a graph with copies to steps: when values leave, when they come back, and when they are freed.

A value that is fetched later is written as soon as it is made, so that its copy is whole when its bytes are needed.
Its bytes go when the copy is whole, or when others need the room, the oldest first. If it is read again before that,
nothing is fetched. A fetch begins earlier than it must, where memory allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from remint.graph import Compute, Fetch, Free, Graph, Offload, Tier
from remint.graph.steps import Step, with_frees
from remint.planners.tiers.copied_graph import CopiedGraph, is_of_the_graph


def steps_of(copied: CopiedGraph, sequence: Sequence[int], tier: Tier, budget: int) -> list[Step] | None:
    """Return the steps of a schedule of the graph with copies; None if they do not fit into the budget."""
    writer = _Writer(copied, sequence, tier, budget)
    position = -1
    for step in with_frees(copied.numbered.graph, sequence):
        if isinstance(step, Free):
            if is_of_the_graph(step.value):
                writer.let_go(step.value, position)
            continue
        assert isinstance(step, Compute)
        position += 1
        value = copied.copied[step.op]
        if not (writer.want(value) if value else writer.run(copied.op[step.op], position)):
            return None
    return writer.with_offloads()


class _Writer:
    """Writes steps, with what is resident, and a clock."""

    def __init__(self, copied: CopiedGraph, sequence: Sequence[int], tier: Tier, budget: int) -> None:
        self.graph, self.tier, self.budget = copied.graph, tier, budget
        self.steps: list[Step] = []
        self.used = self.graph.constant_bytes
        self.resident: set[str] = set()
        self.wanted: set[str] = set()  # copied or fetched by the schedule, and not let go since
        self.leaving: dict[str, None] = {}  # let go, and fetched later: their bytes are there as long as they may
        self.ran: set[int] = set()
        self.last_copy = {copied.copied[i]: at for at, i in enumerate(sequence) if copied.copied[i]}
        often = {value for value in self.last_copy if value}
        runs: dict[str, int] = dict.fromkeys(often, 0)
        for i in sequence:
            if copied.copied[i]:
                runs[copied.copied[i]] += 1
        self.comes_back = {value for value, count in runs.items() if count > 1}
        self.clock = self.idle_at = 0.0
        self.whole_at: dict[str, float] = {}  # when the copy of a value is whole
        self.arrives: dict[str, float] = {}

    def let_go(self, value: str, position: int) -> None:
        """The schedule needs the value no more, or not until it is fetched."""
        self.wanted.discard(value)
        if value not in self.resident:
            return
        if self.last_copy.get(value, -1) > position:
            self.leaving[value] = None
            self._free_what_is_whole()
        else:
            self._free(value)

    def want(self, value: str) -> bool:
        """The schedule copies the value, or fetches it; return whether there is room."""
        self.wanted.add(value)
        self.leaving.pop(value, None)
        if value in self.resident:
            return True
        nbytes = self.graph.nbytes(value)
        if not self._make_room(nbytes):
            return False
        self.steps.append(Fetch(value))
        self.resident.add(value)
        self.used += nbytes
        self.arrives[value] = self._transfer(nbytes)
        return True

    def run(self, index: int, position: int) -> bool:
        """The schedule runs an op of the graph; return whether there is room."""
        op = self.graph.ops[index]
        for value in op.consumes:
            if value in self.resident:
                self._free(value)
        made = [value for value in op.outputs if value not in self.resident]
        taken = sum(map(self.graph.nbytes, op.consumes.values()))
        if not self._make_room(sum(map(self.graph.nbytes, made)) - taken):
            return False
        self.steps.append(Compute(index))
        self.clock = max([self.clock, *(self.arrives.get(value, 0.0) for value in op.inputs)]) + op.cost
        for value in op.consumes.values():
            self.resident.discard(value)
            self.leaving.pop(value, None)
            self.used -= self.graph.nbytes(value)
        for value in made:
            self.resident.add(value)
            self.used += op.outputs[value]
            if index not in self.ran and value in self.comes_back:
                self.whole_at[value] = self._transfer(op.outputs[value])
        if index in self.ran:
            # It ran again for the sake of other outputs.
            for value in made:
                if value in self.last_copy and value not in self.wanted:
                    self.let_go(value, position)
        self.ran.add(index)
        self._free_what_is_whole()
        return True

    def with_offloads(self) -> list[Step]:
        """Return the steps, where all that is fetched is written right after it was made first."""
        fetched = {step.value for step in self.steps if isinstance(step, Fetch)}
        result: list[Step] = []
        for step in self.steps:
            result.append(step)
            if isinstance(step, Compute):
                mine = [value for value in self.graph.ops[step.op].outputs if value in fetched]
                result += map(Offload, mine)
                fetched.difference_update(mine)
        return result

    def _transfer(self, nbytes: int) -> float:
        self.idle_at = max(self.idle_at, self.clock) + self.tier.seconds(nbytes)
        return self.idle_at

    def _free(self, value: str) -> None:
        self.steps.append(Free(value))
        self.resident.discard(value)
        self.leaving.pop(value, None)
        self.used -= self.graph.nbytes(value)

    def _free_what_is_whole(self) -> None:
        for value in [v for v in self.leaving if self.whole_at.get(v, 0.0) <= self.clock]:
            self._free(value)

    def _make_room(self, nbytes: int) -> bool:
        while self.used + nbytes > self.budget and self.leaving:
            value = next(iter(self.leaving))
            self.clock = max(self.clock, self.whole_at.get(value, 0.0))
            self._free(value)
        return self.used + nbytes <= self.budget


def with_early_fetches(graph: Graph, steps: Sequence[Step], tier: Tier, budget: int, lead: float) -> list[Step]:
    """Move fetches forward, in their order, to begin `lead` times their own time earlier than they must."""
    used, clock = _memory_and_time(graph, steps)
    fetches = [k for k, step in enumerate(steps) if isinstance(step, Fetch)]
    begin: dict[int, float] = {}  # when each must begin, if nothing ever waits
    following = float("inf")
    for k in reversed(fetches):
        seconds = tier.seconds(graph.nbytes(_value(steps[k])))
        following = min(clock[k], following) - seconds
        begin[k] = following - lead * seconds
    gone: dict[str, int] = {}  # where a value was freed last
    before: list[list[Step]] = [[] for _ in steps]  # fetches that now come before a step
    earliest = 0
    for k, step in enumerate(steps):
        if isinstance(step, Free):
            gone[step.value] = k
        if not isinstance(step, Fetch):
            continue
        nbytes = graph.nbytes(step.value)
        least = max(earliest, gone.get(step.value, -1) + 1)
        at = now = k
        # It counts from the end of the step before it, and while each step runs that it now precedes.
        while now > least and clock[now] > begin[k] and used[now - 1] + nbytes <= budget:
            now -= 1
            if now == 0 or used[now - 1] + nbytes <= budget:
                at = now
        for j in range(at, k):
            used[j] += nbytes
        before[at].append(step)
        earliest = at
    result: list[Step] = []
    for step, first in zip(steps, before, strict=True):
        result += first
        if not isinstance(step, Fetch):
            result.append(step)
    return result


def _memory_and_time(graph: Graph, steps: Sequence[Step]) -> tuple[list[int], list[float]]:
    """Return per step the bytes while it runs, and when it begins if nothing ever waits."""
    resident: set[str] = set()
    used: list[int] = []
    now = graph.constant_bytes
    for step in steps:
        if isinstance(step, Compute):
            op = graph.ops[step.op]
            resident.difference_update(op.consumes.values())
            now -= sum(map(graph.nbytes, op.consumes.values()))
            now += sum(nbytes for value, nbytes in op.outputs.items() if value not in resident)
            resident.update(op.outputs)
        elif isinstance(step, Fetch):
            now += graph.nbytes(step.value)
            resident.add(step.value)
        elif isinstance(step, Free):
            now -= graph.nbytes(step.value)
            resident.discard(step.value)
        used.append(now)
    seconds = (graph.ops[step.op].cost if isinstance(step, Compute) else 0.0 for step in steps)
    return used, list(accumulate(seconds, initial=0.0))[:-1]


def _value(step: Step) -> str:
    assert isinstance(step, Fetch)
    return step.value
