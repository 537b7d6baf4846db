"""Traces on disk: JSON lines, one event per line, between a header and an end record.

    {"format": "remint-trace", "version": 2}
    {"event": "constant", "name": "weight", "outputs": [0], "bytes": [4096]}
    {"event": "call", "name": "conv", "args": [0], "outputs": [1], "bytes": [65536], "seconds": 0.0025}
    {"event": "view", "name": "flatten", "args": [1], "outputs": [2], "aliases": [0], "seconds": 0.0}
    {"event": "mutate", "name": "relu_", "args": [1], "outputs": [3], "mutated": [0], "seconds": 0.0001}
    {"event": "release", "tensor": 1}
    {"event": "mark", "name": "backward"}
    {"event": "pin", "tensor": 3, "fixed": true}
    {"event": "materialize", "tensor": 3}
    {"event": "end", "events": 8}

`outputs` only says what follows from the order; it is there for people, and is checked. Ops may have a
`source` and the memory `requests` of their kernel (see `TraceBuilder.call`), calls `aliases`, the end record
`held`. Version 2 added what recorded programs need: `pin`, `materialize`, the field `where` of constants,
`once` and `kept` of calls and mutations, and `bytes`, `overwritten` and `effects` of mutations. The end
record tells a complete file from a truncated one. Seconds are exact to the nanosecond.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from typing import Any

from remint.errors import TraceError
from remint.trace.builder import TraceBuilder
from remint.trace.events import Call, Constant, Event, Mark, Materialize, Mutate, Pin, Release, View
from remint.trace.trace import Path, Trace

FORMAT = "remint-trace"
VERSION = 2

# Per event: the fields it must have, and those it may have.
_FIELDS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    kind: (
        frozenset(["event", *required.split()]),
        frozenset(["event", *required.split(), *optional.split()]),
    )
    for kind, required, optional in (
        ("constant", "name outputs bytes", "where"),
        ("call", "name args outputs bytes seconds", "aliases source requests once kept"),
        ("view", "name args outputs aliases seconds", "source requests"),
        ("mutate", "name args outputs mutated seconds", "bytes overwritten effects source requests once kept"),
        ("release", "tensor", ""),
        ("pin", "tensor", "fixed"),
        ("materialize", "tensor", ""),
        ("mark", "name", ""),
        ("end", "events", "held"),
    )
}


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and text of each line of a file of JSON lines that is not blank; `.gz` is unpacked."""
    path = os.fspath(path)
    number = 0
    with gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb") as file:
        try:
            for number, line in enumerate(file, start=1):
                text = line.decode()
                if not text.isspace():
                    yield number, text
        except UnicodeDecodeError as error:
            raise TraceError(f"{path}:{number}: not UTF-8 text: {error}") from None
        except EOFError:
            raise TraceError(f"{path}:{number + 1}: the gzip data end early: the file is truncated") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise TraceError(f"{path}:{number + 1}: not gzip data, or damaged: {error}") from None


# Writing


def write(trace: Trace, path: Path) -> None:
    """Write `trace` to `path`; see `Trace.save`."""
    path = os.fspath(path)
    with open(path, "wb") as raw:
        if path.endswith(".gz"):
            # No name and no time in the header: equal traces make equal files.
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=6) as file:
                file.writelines(_encoded(trace))
        else:
            raw.writelines(_encoded(trace))


def _encoded(trace: Trace) -> Iterator[bytes]:
    encode = json.JSONEncoder().encode
    yield (encode({"format": FORMAT, "version": VERSION}) + "\n").encode()
    released = set()
    for event in trace.events():
        if isinstance(event, Release):
            released.add(event.tensor)
        yield (encode(_fields(event)) + "\n").encode()
    end: dict[str, object] = {"event": "end", "events": trace.num_events}
    held = trace.held.tolist()
    if held != [tensor for tensor in range(trace.num_tensors) if tensor not in released]:
        end["held"] = held
    yield (encode(end) + "\n").encode()


def _fields(event: Event) -> dict[str, object]:
    match event:
        case Release():
            return {"event": "release", "tensor": event.tensor}
        case Mark():
            return {"event": "mark", "name": event.name}
        case Pin():
            pin: dict[str, object] = {"event": "pin", "tensor": event.tensor}
            return pin | ({"fixed": True} if event.fixed else {})
        case Materialize():
            return {"event": "materialize", "tensor": event.tensor}
        case Constant():
            constant: dict[str, object] = {
                "event": "constant",
                "name": event.name,
                "outputs": [event.output],
                "bytes": [event.nbytes],
            }
            return constant | ({"where": event.where} if event.where != "arena" else {})
        case Call():
            fields = _op_fields("call", event)
            fields["bytes"] = event.nbytes
            if any(alias >= 0 for alias in event.aliases):
                fields["aliases"] = event.aliases
        case View():
            fields = _op_fields("view", event)
            fields["aliases"] = event.aliases
        case Mutate():
            fields = _op_fields("mutate", event)
            fields["mutated"] = event.mutated
            fresh = event.nbytes[len(event.mutated) :]
            # What there is nothing of is left out, but for the sign that there may be nothing at all.
            optional = {"bytes": fresh, "overwritten": event.overwritten, "effects": event.effects}
            fields |= {name: places for name, places in optional.items() if places}
            if not event.mutated:
                fields["effects"] = event.effects
    fields["seconds"] = event.seconds
    if event.source is not None:
        fields["source"] = event.source
    if event.requests:
        fields["requests"] = event.requests
    if not isinstance(event, View):
        fields |= {name: places for name, places in (("once", event.once), ("kept", event.kept)) if places}
    return fields


def _op_fields(kind: str, event: Call | View | Mutate) -> dict[str, object]:
    return {"event": kind, "name": event.name, "args": event.args, "outputs": event.outputs}


# Reading


def read(path: Path) -> Trace:
    """Return the trace in the file at `path`; see `Trace.load`."""
    builder: TraceBuilder | None = None
    trace: Trace | None = None
    number = 0
    for number, line in lines(path):
        try:
            record = _decode(line)
            if trace is not None:
                raise TraceError("there is more after the end record")
            if builder is None:
                _check_header(record)
                builder = TraceBuilder()
            elif record.get("event") == "end":
                trace = _end(builder, record)
            else:
                _add(builder, record)
        except TraceError as error:
            raise TraceError(f"{os.fspath(path)}:{number}: {error}") from None
    if builder is None:
        raise TraceError(f"{os.fspath(path)}:1: the file is empty, without even the header of a trace")
    if trace is None:
        raise TraceError(f"{os.fspath(path)}:{number}: the file ends here, without an end record: it is truncated")
    return trace


# What json.loads ends up calling; its overhead would be a third of the time.
_decode_from = json.JSONDecoder().raw_decode


def _decode(line: str) -> dict[str, Any]:
    line = line.lstrip()
    try:
        record, end = _decode_from(line)
        if end < len(line) and not line[end:].isspace():
            raise ValueError(f"there is more after the first value, from character {end + 1}")
    except (ValueError, RecursionError) as error:
        cut = "" if line.endswith("\n") else "; the line has no end, so the file may be truncated"
        raise TraceError(f"not JSON: {error}{cut}") from None
    if not isinstance(record, dict):
        raise TraceError(f"a line must be a JSON object, not {line.rstrip()[:40]!r}")
    return record


def _check_header(header: dict[str, Any]) -> None:
    version = header.get("version")
    if header.get("format") != FORMAT:
        hint = "; for a log of DTR use Trace.from_dtr_log" if "INSTRUCTION" in header else ""
        raise TraceError(f'not a trace: the first line must be {{"format": "{FORMAT}", "version": {VERSION}}}{hint}')
    if type(version) is not int or version < 1:
        raise TraceError(f"the version of the format must be a whole number from 1, not {version!r}")
    if version > VERSION:
        raise TraceError(
            f"written by a newer remint, in version {version} of the format, and this one knows {VERSION}: "
            "upgrade remint to read it"
        )


def _check_fields(kind: Any, record: dict[str, Any]) -> None:
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise TraceError(f"unknown event {kind!r}: one of {', '.join(_FIELDS)} is expected")
    required, allowed = _FIELDS[kind]
    if not required <= record.keys():
        raise TraceError(f"{kind} needs the field {min(required - record.keys())!r}")
    if not record.keys() <= allowed:
        unknown = min(record.keys() - allowed)
        raise TraceError(f"{kind} has no field {unknown!r}: its fields are {', '.join(sorted(allowed))}")


def _end(builder: TraceBuilder, record: dict[str, Any]) -> Trace:
    _check_fields("end", record)
    if record["events"] != builder.num_events:
        raise TraceError(
            f"the end record counts {record['events']} events, but there are {builder.num_events} before it"
        )
    return builder.build(record.get("held"))


def _add(builder: TraceBuilder, record: dict[str, Any]) -> None:
    kind = record.get("event")
    _check_fields(kind, record)
    if kind == "release":
        builder.release(record["tensor"])
    elif kind == "pin":
        builder.pin(record["tensor"], fixed=bool(record.get("fixed")))
    elif kind == "materialize":
        builder.materialize(record["tensor"])
    elif kind == "mark":
        builder.mark(record["name"])
    else:
        outputs = _ADD[str(kind)](builder, record)
        if record["outputs"] != outputs:
            raise TraceError(
                f"outputs are {record['outputs']!r}, but tensors are numbered in the order they are made: "
                f"{outputs} is right"
            )


def _add_constant(builder: TraceBuilder, record: dict[str, Any]) -> list[int]:
    nbytes = record["bytes"]
    if not isinstance(nbytes, list) or len(nbytes) != 1:
        raise TraceError(f"a constant is one tensor: bytes must be a list of one number, not {nbytes!r}")
    return [builder.constant(nbytes[0], record["name"], where=record.get("where", "arena"))]


def _add_call(builder: TraceBuilder, record: dict[str, Any]) -> list[int]:
    outputs = builder.call(
        record["name"],
        record["args"],
        record["bytes"],
        record["seconds"],
        aliases=record.get("aliases"),
        source=record.get("source"),
        requests=record.get("requests"),
        once=record.get("once", ()),
        kept=record.get("kept", ()),
    )
    return list(outputs)


def _add_view(builder: TraceBuilder, record: dict[str, Any]) -> list[int]:
    aliases = record["aliases"]
    if not isinstance(aliases, list) or not aliases or -1 in aliases:
        raise TraceError(f"all outputs of a view share an argument's storage: aliases cannot be {aliases!r}")
    return _add_call(builder, {**record, "bytes": [0] * len(aliases)})


def _add_mutate(builder: TraceBuilder, record: dict[str, Any]) -> list[int]:
    outputs = builder.mutate(
        record["name"],
        record["args"],
        record["mutated"],
        record["seconds"],
        nbytes=record.get("bytes", ()),
        overwritten=record.get("overwritten", ()),
        effects=record.get("effects"),
        source=record.get("source"),
        requests=record.get("requests"),
        once=record.get("once", ()),
        kept=record.get("kept", ()),
    )
    return list(outputs)


_ADD = {"constant": _add_constant, "call": _add_call, "view": _add_view, "mutate": _add_mutate}
