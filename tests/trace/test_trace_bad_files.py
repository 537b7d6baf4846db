"""Files that are damaged, truncated or wrong: each mistake is reported with its line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from remint.errors import TraceError
from remint.trace import Trace
from tests.support.small_trace import LINES, small

HEADER = '{"format": "remint-trace", "version": 1}\n'
CONSTANT = '{"event": "constant", "name": "weight", "outputs": [0], "bytes": [8]}\n'


def event(**fields: Any) -> str:
    return json.dumps(fields) + "\n"


def call(**fields: Any) -> str:
    right = {"event": "call", "name": "op", "args": [0], "outputs": [1], "bytes": [8], "seconds": 0.5}
    return json.dumps({key: value for key, value in {**right, **fields}.items() if value != "missing"}) + "\n"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "the file is empty"),
        ("\n\n", 1, "the file is empty"),
        (CONSTANT, 1, 'not a trace: the first line must be {"format": "remint-trace", "version": 2}'),
        ('{"INSTRUCTION": "ANNOTATE"}\n', 1, "use Trace.from_dtr_log"),
        (event(format="remint-trace", version=3), 1, "written by a newer remint, in version 3"),
        (event(format="remint-trace", version="1"), 1, "the version of the format must be a whole number"),
        (event(format="remint-trace"), 1, "the version of the format must be"),
        (HEADER, 1, "without an end record: it is truncated"),
        (HEADER + CONSTANT, 2, "without an end record: it is truncated"),
        (HEADER + CONSTANT[:30], 2, "not JSON: .*; the line has no end, so the file may be truncated"),
        (HEADER + "\n{oops}\n", 3, "not JSON: Expecting property name"),
        (HEADER + "{} {}\n", 2, "not JSON: there is more after the first value, from character 3"),
        (HEADER + "[" * 100_000, 2, "not JSON"),
        (HEADER + "[0]\n", 2, "a line must be a JSON object"),
        (HEADER + "\udcff\n", 2, "not UTF-8 text"),
        (HEADER + "{}\n", 2, "unknown event None: one of constant, call, view, mutate, release, pin"),
        (HEADER + event(event="cal"), 2, "unknown event 'cal'"),
        (HEADER + event(event=["call"]), 2, r"unknown event \['call'\]"),
        (HEADER + event(event="release"), 2, "release needs the field 'tensor'"),
        (HEADER + event(event="release", tensor=0), 2, "does not exist: there are no tensors so far"),
        (HEADER + CONSTANT + event(event="release", tensor=0) * 2, 4, "tensor 0, which was released before"),
        (HEADER + CONSTANT + event(event="release", tensor=0) + call(), 4, "event 2, call 'op': argument 0"),
        (HEADER + CONSTANT + event(event="release", tensor=0, name="x"), 3, "no field 'name'"),
        (HEADER + CONSTANT + call(seconds="missing"), 3, "call needs the field 'seconds'"),
        (HEADER + CONSTANT + call(args=[7]), 3, "argument 0 is tensor 7, which does not exist"),
        (HEADER + CONSTANT + call(args=[0.0]), 3, "argument 0 must be a whole number, not 0.0"),
        (HEADER + CONSTANT + call(args={"0": 0}), 3, "args must be a list"),
        (HEADER + CONSTANT + call(bytes=[-8]), 3, "bytes must be 0 or more"),
        (HEADER + CONSTANT + call(bytes=["8"]), 3, "bytes must be a whole number, not '8'"),
        (HEADER + CONSTANT + call(bytes=[10**30]), 3, "fit 64 bits"),
        (HEADER + CONSTANT + call(seconds=-0.5), 3, "seconds must be 0 or more"),
        (HEADER + CONSTANT + call(seconds=float("nan")), 3, "seconds must be 0 or more, .* not nan"),
        (HEADER + CONSTANT + call(seconds=float("inf")), 3, "seconds must be 0 or more, .* not inf"),
        (HEADER + CONSTANT + call(seconds=None), 3, "seconds must be a number, not None"),
        (HEADER + CONSTANT + call(name=5), 3, "the name must be a string"),
        (HEADER + CONSTANT + call(outputs=[2]), 3, r"outputs are \[2\], but .*: \[1\] is right"),
        (HEADER + CONSTANT + call(outputs=[1, 2]), 3, r"outputs are \[1, 2\], but .*: \[1\] is right"),
        (HEADER + CONSTANT + call(requests=[["allocate", 4, 0]]), 3, "output 0 needs 8 bytes"),
        (HEADER + CONSTANT + call(event="view", bytes="missing", aliases=[-1]), 3, "outputs of a view share"),
        (HEADER + CONSTANT + call(event="view", bytes="missing", aliases=[]), 3, "outputs of a view share"),
        (HEADER + CONSTANT.replace("[8]", "[8, 8]"), 2, "a constant is one tensor"),
        (HEADER + CONSTANT + event(event="end"), 3, "end needs the field 'events'"),
        (HEADER + CONSTANT + event(event="end", events=2), 3, "counts 2 events, but there are 1 before it"),
        (HEADER + CONSTANT + event(event="end", events=1, held=[1]), 3, "held at the end: tensor 1"),
        (HEADER + event(event="end", events=0) + CONSTANT, 3, "more after the end record"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_bad_files(tmp_path: Path, suffix: str, text: str, line: int, message: str) -> None:
    path = tmp_path / f"bad.trace{suffix}"
    data = text.encode(errors="surrogateescape")
    path.write_bytes(gzip.compress(data) if suffix else data)
    with pytest.raises(TraceError, match=message) as error:
        Trace.load(path)
    assert str(error.value).startswith(f"{path}:{line}: ")


def test_truncated_gzip(tmp_path: Path) -> None:
    path = tmp_path / "bad.trace.gz"
    small().save(path)
    data = path.read_bytes()
    for length in range(2, len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(TraceError, match=r"bad\.trace\.gz:\d+: .*truncated"):
            Trace.load(path)


def test_damaged_gzip(tmp_path: Path) -> None:
    path = tmp_path / "bad.trace.gz"
    path.write_text(LINES)
    with pytest.raises(TraceError, match=r"bad\.trace\.gz:1: not gzip data"):
        Trace.load(path)
    small().save(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(TraceError):
        Trace.load(path)
