"""Logs of DTR's authors: one JSON object per line, all numbers as strings.

The format is that of the prototype of Dynamic Tensor Rematerialization (Kirisame et al., ICLR 2021). A log
speaks of names, several of which can mean one tensor (`COPY`), and a name can change its tensor (`MUTATE`,
`COPY_FROM`). What a name means does not depend on what is evicted, so names are resolved here: a tensor is
released where the last of its references goes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from remint.errors import TraceError
from remint.trace.builder import TraceBuilder
from remint.trace.files import lines
from remint.trace.trace import Path, Trace


def read(path: Path, *, releases: bool = True) -> Trace:
    """Return the trace in the log at `path`; see `Trace.from_dtr_log`."""
    log = _Log(path, releases=releases)
    log.read()
    return log.replay()


class _Log:
    """Reads the log once, resolving names, and then replays what it found into a `TraceBuilder`.

    Twice, because a tensor whose references go and come back was never released, which is known only later.
    """

    def __init__(self, path: Path, *, releases: bool) -> None:
        self.path = path
        self.releases = releases
        self.line = 0
        self.tensors: dict[str, int] = {}  # in the order in which names are first seen
        self.references: list[int] = []
        self.steps: list[tuple[int, Callable[[TraceBuilder], object]] | None] = []
        self.released: dict[int, int] = {}  # tensor: the step that releases it

    def fail(self, problem: str) -> TraceError:
        return TraceError(f"{self.path}:{self.line}: {problem}")

    def read(self) -> None:
        records = self.records()
        for record in records:
            if record["INSTRUCTION"] == "ANNOTATE" and self.text(record, "ANNOTATION") == "START":
                break
        else:
            raise self.fail("no ANNOTATE START line, after which a log of DTR begins")
        readers = {
            "CONSTANT": self.constant,
            "CALL": self.call,
            "MUTATE": self.mutate,
            "COPY": self.copy,
            "COPY_FROM": self.copy_from,
            "RELEASE": self.release,
            "ANNOTATE": self.annotate,
        }
        for record in records:
            reader = readers.get(record["INSTRUCTION"])
            if reader is None:
                raise self.fail(f"{record['INSTRUCTION']!r} is not expected here: one of {', '.join(readers)} is")
            reader(record, records)

    def replay(self) -> Trace:
        builder = TraceBuilder()
        for step in self.steps:
            if step is None:
                continue
            self.line, add = step
            try:
                add(builder)
            except TraceError as error:
                raise self.fail(str(error)) from None
        # A name keeps its place when it is bound anew, and when it is released.
        held = dict.fromkeys(tensor for tensor in self.tensors.values() if self.references[tensor] > 0)
        return builder.build(list(held))

    # The lines of a log

    def constant(self, record: dict[str, Any], records: Iterator[dict[str, Any]]) -> None:
        name = self.text(record, "NAME")
        nbytes = self.follow(records, "MEMORY", name)
        self.step(lambda builder: builder.constant(nbytes))
        self.bind(name)

    def call(self, record: dict[str, Any], records: Iterator[dict[str, Any]]) -> None:
        line, op, seconds = self.line, self.text(record, "NAME"), self.seconds(record)
        args = [self.tensor(name) for name in self.texts(record, "ARGS")]
        results = self.texts(record, "RESULT")
        nbytes, aliases = [], []
        for name in results:
            size = self.follow(records, "MEMORY", name)
            aliases.append(self.follow(records, "ALIAS", name))
            # A view's MEMORY is what it shows of its argument's storage.
            nbytes.append(0 if aliases[-1] >= 0 else size)
        self.steps.append((line, lambda builder: builder.call(op, args, nbytes, seconds, aliases=aliases)))
        for name in results:
            self.bind(name)

    def mutate(self, record: dict[str, Any], records: Iterator[dict[str, Any]]) -> None:
        op, seconds = self.text(record, "NAME"), self.seconds(record)
        names = self.texts(record, "ARGS")
        args = [self.tensor(name) for name in names]
        mutated = [self.integer("MUTATE", index) for index in self.items(record, "MUTATE")]
        for index in mutated:
            if not 0 <= index < len(names):
                raise self.fail(f"MUTATE has {index}, but there are {len(names)} ARGS, from 0")
        self.step(lambda builder: builder.mutate(op, args, mutated, seconds))
        first = len(self.references)
        self.references.extend([1] * len(mutated))
        for output, index in enumerate(mutated):
            self.rebind(names[index], first + output)

    def copy(self, record: dict[str, Any], records: Iterator[dict[str, Any]]) -> None:
        name = self.text(record, "DST")
        tensor = self.tensor(self.text(record, "SRC"))
        if name in self.tensors:
            raise self.fail(f"DST {name!r} exists already: COPY makes a new name, COPY_FROM binds one anew")
        self.tensors[name] = tensor
        self.gain(tensor)

    def copy_from(self, record: dict[str, Any], records: Iterator[dict[str, Any]]) -> None:
        name = self.text(record, "DST")
        tensor = self.tensor(self.text(record, "SRC"))
        self.tensor(name)
        self.rebind(name, tensor)
        self.gain(tensor)

    def release(self, record: dict[str, Any], records: Iterator[dict[str, Any]]) -> None:
        tensor = self.tensors.get(self.text(record, "NAME"))
        if tensor is not None:
            self.drop(tensor)

    def annotate(self, record: dict[str, Any], records: Iterator[dict[str, Any]]) -> None:
        if self.text(record, "ANNOTATION") == "BACKWARD":
            self.step(lambda builder: builder.mark("backward"))

    # Names and references

    def step(self, add: Callable[[TraceBuilder], object]) -> None:
        self.steps.append((self.line, add))

    def bind(self, name: str) -> None:
        if name in self.tensors:
            raise self.fail(f"{name!r} exists already: a new tensor needs a new name")
        self.tensors[name] = len(self.references)
        self.references.append(1)

    def rebind(self, name: str, tensor: int) -> None:
        old, self.tensors[name] = self.tensors[name], tensor
        self.drop(old)

    def drop(self, tensor: int) -> None:
        self.references[tensor] -= 1
        if self.references[tensor] == 0 and self.releases:
            self.released[tensor] = len(self.steps)
            self.step(lambda builder: builder.release(tensor))

    def gain(self, tensor: int) -> None:
        self.references[tensor] += 1
        if self.references[tensor] > 0 and tensor in self.released:
            self.steps[self.released.pop(tensor)] = None

    def tensor(self, name: str) -> int:
        if name not in self.tensors:
            raise self.fail(f"{name!r} is not the name of a tensor so far")
        return self.tensors[name]

    # Lines and their fields

    def records(self) -> Iterator[dict[str, Any]]:
        for number, line in lines(self.path):
            self.line = number
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise self.fail(f"not JSON: {error}") from None
            if not isinstance(record, dict) or not isinstance(record.get("INSTRUCTION"), str):
                raise self.fail("a line must be an object with an INSTRUCTION")
            yield record

    def follow(self, records: Iterator[dict[str, Any]], instruction: str, name: str) -> int:
        """Return the number in the next line, which must be a MEMORY or ALIAS line for `name`."""
        record = next(records, {"INSTRUCTION": "end of the log"})
        if record["INSTRUCTION"] != instruction or record.get("NAME") != name:
            raise self.fail(f"the {instruction} line of {name!r} is expected here, not {record['INSTRUCTION']}")
        number = self.integer(instruction, self.field(record, instruction))
        if number < (-1 if instruction == "ALIAS" else 0):
            raise self.fail(f"{instruction} of {name!r} is {number}, which is negative")
        return number

    def field(self, record: dict[str, Any], name: str) -> Any:
        if name not in record:
            raise self.fail(f"{record['INSTRUCTION']} needs the field {name}")
        return record[name]

    def text(self, record: dict[str, Any], name: str) -> str:
        value = self.field(record, name)
        if not isinstance(value, str):
            raise self.fail(f"{name} must be a string, not {value!r}")
        return value

    def items(self, record: dict[str, Any], name: str) -> list[Any]:
        value = self.field(record, name)
        if not isinstance(value, list):
            raise self.fail(f"{name} must be a list, not {value!r}")
        return value

    def texts(self, record: dict[str, Any], name: str) -> list[str]:
        values = self.items(record, name)
        if not all(isinstance(value, str) for value in values):
            raise self.fail(f"{name} must be a list of strings, not {values!r}")
        return values

    def integer(self, name: str, value: Any) -> int:
        # Numbers are strings in these logs, all but the indices of MUTATE.
        if type(value) is int:
            return value
        try:
            return int(value if isinstance(value, str) else "")
        except ValueError:
            raise self.fail(f"{name} must be a whole number, not {value!r}") from None

    def seconds(self, record: dict[str, Any]) -> float:
        return self.integer("TIME", self.field(record, "TIME")) / 1e9
