"""DTR's reference semantics a second time: plain, slow Python on ideal memory, to hold the engine against.

It follows section 1 of the paper (Kirisame et al., ICLR 2021) and what the authors' simulator is known to do
where the paper leaves a choice: the pool is a list that is scanned in order, regions (`dtr`, `msps`) are kept
step by step rather than walked anew, and classes (`dtr-eq`) never split. Nothing is shared with the core, and
nothing is made quick.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from remint.trace import Trace
from remint.trace.events import Call, Constant, Mutate, Release, View

POLICIES = ("dtr", "dtr-eq", "dtr-local", "lru", "size", "msps")


class OutOfMemoryError(Exception):
    pass


class ThrashError(Exception):
    pass


class UndefinedInReferenceError(Exception):
    """The authors' simulator stops here with an assertion: there is no answer to compare with."""


@dataclass(eq=False)
class Class:
    """A node of the union-find of `dtr-eq`."""

    cost: int
    parent: Class | None = None

    def root(self) -> Class:
        node = self
        while node.parent is not None:
            node = node.parent
        return node


@dataclass(eq=False)
class Region:
    """What is evicted in one direction from a storage, up to the resident storages at its edge."""

    inside: set[Storage] = field(default_factory=set)
    edge: set[Storage] = field(default_factory=set)
    cost: int = 0

    def absorb(self, storage: Storage, its: Region) -> None:
        if storage not in self.edge:
            raise UndefinedInReferenceError
        self.edge.remove(storage)
        self.edge |= its.edge
        added = (its.inside - self.inside) | {storage}
        self.cost += sum(s.cost for s in added)
        self.inside |= added


@dataclass(eq=False)
class Storage:
    nbytes: int
    cost: int = 0
    resident: bool = False
    pinned: bool = False
    locks: int = 0
    references: int = 0
    last: int = 0
    tensors: list[Tensor] = field(default_factory=list)
    above: Region = field(default_factory=Region)
    below: Region = field(default_factory=Region)
    in_class: Class | None = field(default_factory=lambda: Class(0))

    def add(self, tensor: Tensor) -> None:
        if all(other.op is not tensor.op for other in self.tensors):
            self.cost += tensor.op.cost
        self.tensors.append(tensor)
        self.references += 1

    def parents(self) -> Iterator[Storage]:
        for tensor in self.tensors:
            for parent in tensor.op.inputs:
                yield parent.storage

    def children(self) -> Iterator[Storage]:
        for tensor in self.tensors:
            for op in tensor.readers:
                for child in op.outputs:
                    yield child.storage


@dataclass(eq=False)
class Op:
    cost: int
    inputs: list[Tensor]
    outputs: list[Tensor] = field(default_factory=list)


@dataclass(eq=False)
class Tensor:
    number: int
    op: Op
    storage: Storage
    defined: bool = False
    readers: list[Op] = field(default_factory=list)


@dataclass
class Model:
    """One run of a trace; `run` says how it ended, and `events` what it did."""

    budget: int
    policy: str
    eager: bool = True
    max_rematerialized: float = math.inf
    clock: int = 1
    used: int = 0
    peak: int = 0
    rematerialized: int = 0
    events: list[str] = field(default_factory=list)
    depth: int = 0
    evictions_while_waiting: int = 0
    """Evictions for an op that another op waits for."""
    evictions_beside_pending: int = 0
    """Of those, evictions while an op of the program waits, whose outputs were never made."""
    tensors: list[Tensor] = field(default_factory=list)
    pool: list[Storage] = field(default_factory=list)

    def run(self, trace: Trace) -> str:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(limit, 50_000))
        try:
            self._run(trace)
        except OutOfMemoryError:
            return "oom"
        except ThrashError:
            return "thrash"
        finally:
            sys.setrecursionlimit(limit)
        return "ok"

    def _run(self, trace: Trace) -> None:
        for event, nanoseconds in zip(trace.events(), trace.nanoseconds.tolist(), strict=True):
            match event:
                case Constant():
                    (constant,) = self._call([], [event.nbytes], [-1], 0)
                    self._pin(constant.storage)
                case Call():
                    self._call(event.args, event.nbytes, event.aliases, nanoseconds)
                case View():
                    self._call(event.args, [0] * len(event.outputs), event.aliases, nanoseconds)
                case Mutate():
                    self._call(event.args, event.nbytes, [-1] * len(event.outputs), nanoseconds)
                case Release():
                    self._release(self.tensors[event.tensor].storage)
        for number in trace.held.tolist():
            tensor = self.tensors[number]
            if not tensor.defined:
                self._make(tensor, program=False)
            self._pin(tensor.storage)

    def _call(self, args, nbytes, aliases, cost) -> list[Tensor]:
        op = Op(cost, [self.tensors[arg] for arg in args])
        for size, alias in zip(nbytes, aliases, strict=True):
            storage = op.inputs[alias].storage if alias >= 0 else Storage(size)
            tensor = Tensor(len(self.tensors), op, storage)
            storage.add(tensor)
            self.tensors.append(tensor)
            op.outputs.append(tensor)
        if not op.outputs:
            # The reference knows no such op: it reads, and leaves nothing.
            self._lock_inputs(op)
            self.clock += cost
            self._unlock_inputs(op)
            return []
        for tensor in op.inputs:
            tensor.readers.append(op)
        self._make(op.outputs[0], program=True)
        for tensor in op.outputs:
            tensor.storage.last = self.clock
        return op.outputs

    def _make(self, target: Tensor, *, program: bool) -> None:
        op = target.op
        self._lock_inputs(op)
        self._free(sum(self._fresh_bytes(tensor) for tensor in op.outputs))
        self.clock += op.cost
        self.used += sum(self._fresh_bytes(tensor) for tensor in op.outputs)
        self.peak = max(self.peak, self.used)
        self.events.append(f"{'C' if program else 'R'}{target.number}")
        siblings = [tensor for tensor in op.outputs if tensor is not target]
        made = [tensor.storage for tensor in [*siblings, target] if not tensor.storage.resident]
        for tensor in siblings:
            if tensor.defined:
                self.used -= self._fresh_bytes(tensor)
        for tensor in op.outputs:
            tensor.defined = tensor.storage.resident = True
        self.pool += made
        self._materialized(made)
        self._unlock_inputs(op)
        if not program:
            self.rematerialized += op.cost
        if self.rematerialized > self.max_rematerialized:
            raise ThrashError

    def _lock_inputs(self, op: Op) -> None:
        for tensor in op.inputs:
            tensor.storage.last = self.clock
        missing = [tensor for tensor in op.inputs if not tensor.defined]
        for tensor in op.inputs:
            if tensor.defined:
                self._lock(tensor.storage)
        for tensor in missing:
            if not tensor.defined:
                self.depth += 1
                self._make(tensor, program=False)
                self.depth -= 1
            self._lock(tensor.storage)

    def _unlock_inputs(self, op: Op) -> None:
        for tensor in op.inputs:
            tensor.storage.locks -= 1
            if tensor.storage.locks == 0:
                self.pool.append(tensor.storage)

    def _lock(self, storage: Storage) -> None:
        if storage.locks == 0:
            self.pool.remove(storage)
        storage.locks += 1

    def _pin(self, storage: Storage) -> None:
        if not storage.pinned:
            storage.pinned = True
            self._lock(storage)

    def _release(self, storage: Storage) -> None:
        storage.references -= 1
        if self.eager and storage.references == 0 and storage.resident and not storage.pinned:
            self._evict(storage)

    @staticmethod
    def _fresh_bytes(tensor: Tensor) -> int:
        return tensor.storage.nbytes if tensor.storage.tensors[0] is tensor else 0

    # Eviction and the policies.

    def _free(self, nbytes: int) -> None:
        while self.used + nbytes > self.budget:
            if not self.pool:
                raise OutOfMemoryError
            best, lowest = None, math.inf
            for storage in self.pool:
                score = self._score(storage)
                if score <= lowest:
                    best, lowest = storage, score
                if score == 0:
                    break
            assert best is not None
            self.evictions_while_waiting += self.depth > 0
            self.evictions_beside_pending += self.depth > 0 and not self.tensors[-1].defined
            self._evict(best)

    def _score(self, storage: Storage) -> float:
        stale = self.clock - storage.last
        cost, denominator = storage.cost, storage.nbytes
        match self.policy:
            case "lru":
                return storage.last
            case "size":
                cost = 1
            case "msps":
                cost += storage.above.cost
            case "dtr-local":
                denominator *= stale
            case "dtr":
                cost += storage.above.cost + storage.below.cost
                denominator *= stale
            case "dtr-eq":
                cost += sum(node.cost for node in {near.in_class.root() for near in self._evicted_near(storage)})
                denominator *= stale
        return cost / denominator if denominator > 0 else math.inf

    @staticmethod
    def _evicted_near(storage: Storage) -> set[Storage]:
        near = {*storage.parents(), *storage.children()} - {storage}
        return {other for other in near if not other.resident}

    def _evict(self, storage: Storage) -> None:
        storage.resident = False
        self.used -= storage.nbytes
        self.pool.remove(storage)
        for tensor in storage.tensors:
            tensor.defined = False
        self.events.append(f"E{storage.tensors[0].number}")
        if self.policy in ("dtr", "msps"):
            for parent in storage.above.edge:
                parent.below.absorb(storage, storage.below)
            for child in storage.below.edge:
                child.above.absorb(storage, storage.above)
            storage.above, storage.below = Region(), Region()
        if self.policy == "dtr-eq":
            storage.in_class = Class(storage.cost)
            for near in self._evicted_near(storage):
                mine, other = storage.in_class.root(), near.in_class.root()
                if mine is not other:
                    other.parent = mine
                    mine.cost += other.cost

    def _materialized(self, made: list[Storage]) -> None:
        if self.policy in ("dtr", "msps"):
            for storage in made:
                self._rebuild_above(storage)
                self._rebuild_below(storage)
            for parent in {parent for storage in made for parent in storage.above.edge}:
                self._rebuild_below(parent)
            for child in {child for storage in made for child in storage.below.edge}:
                self._rebuild_above(child)
        for storage in made if self.policy == "dtr-eq" else []:
            storage.in_class.root().cost -= storage.cost
            storage.in_class = None

    @staticmethod
    def _rebuild_above(base: Storage) -> None:
        base.above = _walk(base, Storage.parents)

    @staticmethod
    def _rebuild_below(base: Storage) -> None:
        base.below = _walk(base, Storage.children)


def _walk(base: Storage, neighbours) -> Region:
    region = Region()
    to_visit = [base]
    while to_visit:
        for storage in neighbours(to_visit.pop()):
            if storage.resident:
                if storage is not base:
                    region.edge.add(storage)
            elif storage not in region.inside:
                region.inside.add(storage)
                region.cost += storage.cost
                to_visit.append(storage)
    return region
