"""The exact model of a step: a graph whose plans need, to the byte, what the runtime needs for them.

The runtime does more than run ops, and the graph says so:

- An op in place takes over the bytes that it writes: it *consumes* its input (`Op.consumes`).
- Some values cannot be made again: constants, outputs that a trace marks so, what an op in place made of them, and
  values that are pinned. They stay until the program releases them, and until nothing can ask for what was computed
  from them. An op without a cost, `… ends`, stands where they go.
- Before a constant is written, what the program has of the values computed from it is made resident and pinned. From
  then on, no op that has read the old content may run.
- Constants that the step releases or writes are made by the first op, or where they appear. The others are constants
  of the graph.
- Every block has at least `alignment` bytes, and a multiple of it. Scratch is an output that nobody reads.

A pinned value goes on as another value, which an op without a cost makes of it in place.

What it leaves out: an op that has read a value before it was pinned, and runs again after that, reads it where it is,
and not a copy. Views that cost something are made again with their storage, and are charged only if they were
freed themselves. Constants that the program has released may go earlier, if the engine finds that pinning takes less.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from remint.graph.graph import Graph, Op
from remint.trace import Trace
from remint.trace.events import Call, Constant, Materialize, Mutate, Pin, Release, View


@dataclass(frozen=True)
class StepModel:
    """A graph of a trace, and what its ops and values are in the trace."""

    graph: Graph
    numbers: tuple[int | None, ...]
    """Per op of the graph: which op of the trace it is, from 0. None: it is none of them."""
    tensors: Mapping[str, int]
    """Per value that an op of the trace made: the first tensor that has it."""
    num_constants: int
    """Tensors that were there before the step: the constants that the trace begins with."""
    num_ops: int
    """Ops of the trace. Ops that neither cost nor make anything are among them, though not in the graph."""


def step_model(trace: Trace, *, alignment: int = 1) -> StepModel:
    """Return the exact model of a trace on an arena with this alignment."""
    return _Writer(trace, alignment).model()


def scratch_bytes(event: Call | View | Mutate, *, alignment: int) -> int:
    """Return the bytes that an op holds at its peak beyond its outputs."""
    sizes: list[int] = []
    now = peak = outputs = 0
    for request in event.requests:
        if request[0] == "allocate":
            sizes.append(footprint(request[1], alignment))
            now += sizes[-1]
            outputs += sizes[-1] if len(request) == 3 else 0
        else:
            now -= sizes[request[1]]
        peak = max(peak, now)
    return max(0, peak - outputs)


def footprint(nbytes: int, alignment: int) -> int:
    """Return the bytes of a block for that many."""
    return nbytes if alignment == 1 else max(alignment, -(-nbytes // alignment) * alignment)


@dataclass(eq=False)
class _Value:
    name: str
    nbytes: int
    born: int  # the event that made it
    pinned: bool
    made_from: list[_Value] = field(default_factory=list)
    becomes: list[_Value] = field(default_factory=list)  # values whose recipes read it
    pinned_at: int | None = None  # the event from which on it has no recipe
    end: int | None = None  # the event at which the program released it; None: it never did


@dataclass(eq=False)
class _Storage:
    value: _Value
    references: int = 0


class _Writer:
    def __init__(self, trace: Trace, alignment: int) -> None:
        self._trace = trace
        self._alignment = alignment
        self._first: dict[str, int] = {}  # constants: values that are there when the step begins
        self._ops: list[tuple[int, int, Op, int | None]] = []  # event, order, op, number in the trace
        self._storages: list[_Storage] = []  # per tensor
        self._views: dict[int, tuple[str, ...]] = {}  # per tensor, the views with a cost it went through
        self._values: list[_Value] = []
        self._tensors: dict[str, int] = {}
        self._taken: dict[str, int] = {}
        self._makers: dict[str, int] = {}  # value: its place in _ops
        self._num_ops = 0
        self._num_constants = 0

    def model(self) -> StepModel:
        events = list(self._trace.events())
        for at, event in enumerate(events):
            match event:
                case Constant():
                    nbytes = 0 if event.where == "elsewhere" else footprint(event.nbytes, self._alignment)
                    value = self._value(self._unique(event.name), nbytes, at, pinned=True)
                    if self._num_constants == at or nbytes == 0:
                        self._first[value.name] = nbytes
                    else:
                        self._add(at, Op(value.name, 0.0, (), {value.name: nbytes}, False))
                    self._num_constants += self._num_constants == at
                    self._storages.append(_Storage(value, 1))
                case Call() | View() | Mutate():
                    self._op(at, event)
                case Release():
                    self._release(at, event.tensor)
                case Pin():
                    self._pin(at, self._storages[event.tensor].value, f"pin {at}")
                case Materialize():
                    value = self._storages[event.tensor].value
                    if not value.pinned:
                        self._mark(at, f"read {at}", (value.name,))
                case _:
                    pass
        return self._finish(len(events))

    # ── Events ──

    def _op(self, at: int, event: Call | View | Mutate) -> None:
        number = self._num_ops
        self._num_ops += 1
        name = self._unique(event.name)
        not_read = {*event.overwritten, *event.effects} if isinstance(event, Mutate) else set()
        mutated = event.mutated if isinstance(event, Mutate) else ()
        self._before_write(at, name, [event.args[place] for place in {*mutated, *not_read}])
        reads: dict[str, None] = {}
        sources: list[_Value] = []
        for place, tensor in enumerate(event.args):
            if place in not_read:
                continue
            value = self._storages[tensor].value
            reads.update(dict.fromkeys((value.name, *self._views.get(tensor, ()))))
            sources.append(value)
        # What is written, but not read, has to be there the first time.
        there = [self._storages[event.args[place]].value.name for place in not_read]
        outputs: dict[str, int] = {}
        consumes: dict[str, str] = {}
        overwritten: dict[str, str] = {}
        made: list[_Value] = []
        once = any(self._storages[event.args[place]].value.pinned for place in mutated if place not in not_read)
        pinned_outputs = set() if isinstance(event, View) else {*event.once, *event.kept}
        # The last of several outputs on the same bytes gets them.
        heirs = {id(self._storages[event.args[place]]): output for output, place in enumerate(mutated)}
        for output, tensor in enumerate(event.outputs):
            assert tensor == len(self._storages)
            label = f"{name}.{output}"
            alias = -1 if isinstance(event, Mutate) else event.aliases[output]
            if output < len(mutated):
                place = mutated[output]
                storage = self._storages[event.args[place]]
                storage.references += 1
                self._storages.append(storage)
                if heirs[id(storage)] != output:
                    continue
                old = storage.value
                value = self._value(label, old.nbytes, at, pinned=once or output in pinned_outputs)
                # Another argument may read what this one overwrites.
                (overwritten if place in not_read and old.name not in reads else consumes)[label] = old.name
                outputs[label] = old.nbytes
                # The program's tensors go along. The old value has none any more.
                old.end = at
                storage.value = value
                self._tensors[label] = tensor
                made.append(value)
            elif alias >= 0:
                storage = self._storages[event.args[alias]]
                storage.references += 1
                self._storages.append(storage)
                through = self._views.get(event.args[alias], ())
                if event.seconds > 0:
                    outputs[label] = 0
                    self._tensors[label] = tensor
                    through = (*through, label)
                self._views[tensor] = through
            else:
                nbytes = 0 if isinstance(event, View) else event.nbytes[output]
                pinned = once or output in pinned_outputs
                value = self._value(label, footprint(nbytes, self._alignment), at, pinned=pinned)
                outputs[label] = value.nbytes
                self._storages.append(_Storage(value, 1))
                self._tensors[label] = tensor
                made.append(value)
        for value in made:
            if not value.pinned:
                value.made_from = sources
                for source in sources:
                    source.becomes.append(value)
        scratch = scratch_bytes(event, alignment=self._alignment)
        if scratch:
            outputs[f"{name}.workspace"] = scratch
        again = not once and not pinned_outputs
        if overwritten or there:
            # Its bytes go to the output the first time; whoever makes the output again finds other bytes for it.
            gone = {f"{before} overwritten": before for before in overwritten.values()}
            sizes = {after: self._bytes(before) for after, before in gone.items()}
            self._add(at, Op(f"{name} overwrites", 0.0, tuple(dict.fromkeys((*reads, *there))), sizes, False, "", gone))
        if outputs or event.seconds > 0 or reads:
            op = Op(name, event.seconds, tuple(reads), outputs, again, event.source or "", consumes)
            self._add(at, op, number)

    def _release(self, at: int, tensor: int) -> None:
        storage = self._storages[tensor]
        storage.references -= 1
        if storage.references == 0:
            storage.value.end = at

    def _before_write(self, at: int, name: str, tensors: list[int]) -> None:
        """Pin what the program has of the values that were computed from what is about to be written."""
        for tensor in tensors:
            value = self._storages[tensor].value
            if not value.pinned:
                continue
            seen = {id(value)}
            walk = [value]
            while walk:
                for child in walk.pop().becomes:
                    if id(child) in seen or child.pinned:
                        continue
                    seen.add(id(child))
                    if child.end is None:
                        self._pin(at, child, f"pin {child.name} before {name}")
                    else:
                        walk.append(child)

    def _pin(self, at: int, value: _Value, name: str) -> None:
        if value.pinned:
            return
        value.pinned = True
        value.pinned_at = at
        # It goes on as a value that cannot be made again. Its op may still run again for its other outputs.
        before, after = value.name, f"{value.name} pinned"
        value.name = after
        self._add(at, Op(name, 0.0, (before,), {after: value.nbytes}, False, "", {after: before}))

    # ── The graph ──

    def _finish(self, num_events: int) -> StepModel:
        held = dict.fromkeys(self._storages[int(t)].value.name for t in self._trace.held)
        ends = self._last_needs(num_events)
        reads: dict[str, int] = defaultdict(lambda: -1)
        consumed: set[str] = set()
        for at, _, op, number in self._ops:
            for read in op.inputs:
                # What comes before an op, for the same event, is not the op itself.
                reads[read] = max(reads[read], at - (number is None))
            consumed.update(op.consumes.values())
        op_events = sorted({at for at, _, _, number in self._ops if number is not None})
        stays: dict[str, None] = {}
        ended: set[str] = set()
        for value in self._values:
            if not value.pinned or value.name in consumed or value.nbytes == 0:
                continue
            end = ends[id(value)]
            if end >= num_events:
                stays[value.name] = None
            elif any(max(reads[value.name], value.born) < at <= end for at in op_events) or value.name in self._first:
                self._mark(end, f"{value.name} ends", (value.name,))
                ended.add(value.name)
        outputs = dict.fromkeys((*held, *stays))
        made = {name: nbytes for name, nbytes in self._first.items() if name in consumed or name in ended}
        constants = {name: nbytes for name, nbytes in self._first.items() if name not in made}
        ops = sorted(self._ops, key=lambda entry: entry[:2])
        items: list[tuple[Op, int | None]] = [(op, number) for _, _, op, number in ops]
        if made:
            items.insert(0, (Op(self._unique("constants"), 0.0, (), made, False), None))
        graph = Graph(tuple(op for op, _ in items), constants, tuple(outputs))
        return StepModel(graph, tuple(number for _, number in items), self._tensors, self._num_constants, self._num_ops)

    def _last_needs(self, num_events: int) -> dict[int, int]:
        """Return per value the event after which neither the program nor a recipe can ask for it."""
        ends: dict[int, int] = {}
        # Values are made after those that they are made from.
        for value in reversed(self._values):
            end = num_events if value.end is None else value.end
            for child in value.becomes:
                needed = ends[id(child)]
                if child.pinned_at is not None:
                    needed = min(needed, child.pinned_at)
                end = max(end, needed)
            ends[id(value)] = end
        return ends

    def _mark(self, at: int, name: str, reads: tuple[str, ...]) -> None:
        self._add(at, Op(self._unique(name), 0.0, reads, {}, False))

    def _add(self, at: int, op: Op, number: int | None = None) -> None:
        for value in op.outputs:
            self._makers[value] = len(self._ops)
        self._ops.append((at, len(self._ops), op, number))

    def _value(self, name: str, nbytes: int, at: int, *, pinned: bool) -> _Value:
        self._values.append(_Value(name, nbytes, at, pinned))
        return self._values[-1]

    def _bytes(self, name: str) -> int:
        return self._first[name] if name in self._first else self._ops[self._makers[name]][2].outputs[name]

    def _unique(self, name: str) -> str:
        self._taken[name] = self._taken.get(name, 0) + 1
        return name if self._taken[name] == 1 else f"{name}#{self._taken[name]}"
