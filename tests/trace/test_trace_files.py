"""Traces on disk: what is written is what is read."""

from __future__ import annotations

import doctest
import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

import remint
import remint.trace.files
import remint.trace.trace
from remint.trace import Trace, TraceBuilder
from tests.support.small_trace import LINES, small
from tests.support.trace_strategies import traces


@pytest.mark.parametrize("name", ["step.trace", "step.trace.gz"])
@given(trace=traces())
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, name: str, trace: Trace) -> None:
    path = tmp_path_factory.mktemp("traces") / name
    trace.save(path)
    again = Trace.load(str(path))
    assert again == trace
    assert list(again.events()) == list(trace.events())


@pytest.mark.parametrize("nanoseconds", [1, 3, 999_999_999, 123_456_789_012_345, 2**51 - 1, 2**51])
def test_nanoseconds_survive(tmp_path: Path, nanoseconds: int) -> None:
    builder = TraceBuilder()
    builder.call("op", [], [], nanoseconds / 1e9)
    trace = builder.build()
    assert trace.nanoseconds.tolist() == [nanoseconds]
    trace.save(tmp_path / "trace")
    assert Trace.load(tmp_path / "trace") == trace


def test_file_is_as_documented(tmp_path: Path) -> None:
    path = tmp_path / "step.trace"
    small().save(path)
    assert path.read_text() == LINES
    document = str(remint.trace.files.__doc__)
    path.write_text("\n".join(line.strip() for line in document.splitlines() if line.startswith("    {")))
    assert len(Trace.load(path)) == 8


def test_gzip_is_reproducible(tmp_path: Path) -> None:
    small().save(tmp_path / "a.gz")
    small().save(tmp_path / "b.gz")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()).decode() == LINES


def test_blank_lines_and_spaces_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "step.trace"
    path.write_text("\n" + LINES.replace("\n", " \r\n\n  ") + "\n\n")
    assert Trace.load(path) == small()


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Trace.load(tmp_path / "nothing")


@pytest.mark.slow
def test_many_events(tmp_path: Path) -> None:
    builder = TraceBuilder()
    tensor = builder.constant(1)
    for _ in range(50_000):
        (output,) = builder.call("op", [tensor], [1], 1.0)
        builder.release(tensor)
        tensor = output
    trace = builder.build()
    trace.save(tmp_path / "long.trace.gz")
    assert Trace.load(tmp_path / "long.trace.gz") == trace
    assert trace.seconds == 50_000


@pytest.mark.parametrize("module", [remint.trace.trace, remint.trace.files])
def test_doctests(module: Any) -> None:
    assert doctest.testmod(module).failed == 0
