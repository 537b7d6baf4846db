"""Replays the events of a run against the graph of its trace, and fails where an event is impossible.

It knows nothing of policies, locks or scores: only what each op reads and makes, and what C, R, E, O and F mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from remint.trace import Trace
from remint.trace.events import Call, Constant, Mutate, Release, View


@dataclass(eq=False)
class Value:
    """One state of one storage's bytes, under the number of the tensor that it was made as."""

    number: int
    storage: Storage
    inputs: list[Value]
    outputs: list[Value]  # of its op
    defined: bool = False
    maybe: bool = False  # an op that ran again in place may have written over it, or worked on a copy
    offloaded: bool = False  # it is in the copy of its storage, and not in memory


@dataclass(eq=False)
class Storage:
    nbytes: int
    values: list[Value] = field(default_factory=list)

    @property
    def resident(self) -> bool:
        return self.values[0].defined


@dataclass
class Handle:
    """What the program calls one storage; an op in place gives it a new value."""

    value: Value
    version: int = 0


class EventChecker:
    def __init__(self, trace: Trace, *, ghosts: bool) -> None:
        self.trace = trace
        self.ghosts = ghosts
        self.values: dict[int, Value] = {}
        self.written: dict[int, list[Value]] = {}  # per first output of an op in place: what it writes
        self.program: list[int] = []  # first outputs, in the order of the program
        self.unreplayable: set[Value] = set()
        self._read_trace()

    def _read_trace(self) -> None:
        tensors: list[tuple[Handle, int, Value]] = []

        def current(tensor: int) -> Value:
            handle, version, value = tensors[tensor]
            return value if version == handle.version else handle.value

        def add(number: int, storage: Storage, inputs: list[Value], outputs: list[Value]) -> Value:
            value = Value(number, storage, inputs, outputs)
            storage.values.append(value)
            outputs.append(value)
            self.values[number] = value
            return value

        for event in self.trace.events():
            if isinstance(event, Constant):
                value = add(event.output, Storage(event.nbytes), [], [])
                self.unreplayable.add(value)
                tensors.append((Handle(value), 0, value))
                self.program.append(event.output)
            elif isinstance(event, Call | View | Mutate):
                inputs, outputs = [current(arg) for arg in event.args], []
                mutates = isinstance(event, Mutate)
                shares = event.mutated if mutates else event.aliases
                sizes = [0] * len(shares) if isinstance(event, View) else event.nbytes
                for number, size, shared in zip(event.outputs, sizes, shares, strict=True):
                    if shared >= 0 and not mutates:
                        value = add(number, inputs[shared].storage, inputs, outputs)
                        handle = tensors[event.args[shared]][0]
                    else:
                        value = add(number, Storage(size), inputs, outputs)
                        handle = Handle(value)
                        if mutates and self.ghosts:
                            handle = tensors[event.args[shared]][0]
                            handle.value, handle.version = value, handle.version + 1
                            self.written.setdefault(event.outputs[0], []).append(inputs[shared])
                    tensors.append((handle, handle.version, value))
                if outputs:
                    self.program.append(outputs[0].number)

    def resident_bytes(self) -> int:
        storages = {value.storage for value in self.values.values()}
        return sum(storage.nbytes for storage in storages if storage.resident)

    def replay(self, events: tuple[str, ...], *, budget: int | None = None) -> None:
        """`budget`: what the resident storages may take, where no dead record is dropped."""
        computed = []
        for event in events:
            kind, value = event[0], self.values[int(event[1:])]
            if kind == "E":
                self._evict(event, value)
                continue
            if kind == "O":
                self._offload(event, value)
                continue
            if kind == "F":
                self._fetch(event, value)
                continue
            if kind == "C":
                computed.append(value.number)
            else:
                assert value not in self.unreplayable, f"{event}: nothing can make a constant again"
                assert not value.defined or value.maybe, f"{event}: it is there already"
            self._run(event, value, program=kind == "C")
            if budget is not None:
                assert self.resident_bytes() <= budget, event
        assert computed == self.program[: len(computed)], "ops of the program run once, in order"
        self.num_computed = len(computed)

    def _offload(self, event: str, root: Value) -> None:
        assert root.storage.values[0] is root, f"{event}: not the root of a storage"
        assert root.defined, f"{event}: it is not there"
        for value in root.storage.values:
            value.offloaded, value.defined, value.maybe = value.defined, False, False

    def _fetch(self, event: str, root: Value) -> None:
        assert root.offloaded, f"{event}: it is not in the tier"
        for value in root.storage.values:
            value.defined, value.offloaded = value.offloaded, False

    def _evict(self, event: str, root: Value) -> None:
        assert root.storage.values[0] is root, f"{event}: not the root of a storage"
        assert root.defined, f"{event}: it is not there"
        for value in root.storage.values:
            value.defined = value.maybe = False

    def _run(self, event: str, target: Value, *, program: bool) -> None:
        for value in target.inputs:
            assert value.defined, f"{event} reads {value.number}, which is not there"
        for output in target.outputs:
            output.defined, output.maybe = True, False
        for written in self.written.get(target.outputs[0].number, []):
            for value in written.storage.values:
                if not program:
                    value.maybe = value.defined
                    continue
                value.defined = value.maybe = False
        if program:
            # Where the same bytes were written twice, only the last output has them.
            heirs: dict[Storage, Value] = {}
            for output, written in zip(target.outputs, self.written.get(target.outputs[0].number, []), strict=False):
                if written.storage in heirs:
                    heirs[written.storage].defined = False
                heirs[written.storage] = output


def needed_values(checker: EventChecker, trace: Trace) -> set[int]:
    """What something that the program still reads or holds is made from, itself included."""
    held = set(trace.held.tolist())
    for event in trace.events():
        if isinstance(event, Call | View | Mutate):
            held.update(event.args)
        elif isinstance(event, Release):
            held.add(event.tensor)
    needed: set[int] = set()
    to_visit = [checker.values[number] for number in held]
    while to_visit:
        value = to_visit.pop()
        if value.number in needed:
            continue
        needed.add(value.number)
        to_visit += value.inputs
        to_visit += value.storage.values
    return needed
