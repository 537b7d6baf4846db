from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from remint.errors import TraceError
from remint.trace import Trace
from remint.trace.events import Call, Constant, Event, Mark, Mutate, Release, View
from tests.support.trace_oracle import trace_facts

DTR = Path(__file__).parents[3] / "shared" / "dtr"
published = pytest.mark.skipif(not DTR.is_dir(), reason=f"DTR's published logs are not in {DTR}")
MODELS = ["resnet32", "unet", "transformer", pytest.param("lstm", marks=pytest.mark.slow)]

START = {"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"}


def constant(name: str, nbytes: int) -> list[dict[str, Any]]:
    return [
        {"INSTRUCTION": "CONSTANT", "NAME": name},
        {"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": str(nbytes)},
    ]


def call(op: str, args: list[str], results: dict[str, tuple[int, int]], time: int = 5) -> list[dict[str, Any]]:
    """`results`: per name its bytes and alias."""
    lines: list[dict[str, Any]] = [
        {"INSTRUCTION": "CALL", "NAME": op, "ARGS": args, "RESULT": [*results], "TIME": str(time)}
    ]
    for name, (nbytes, alias) in results.items():
        lines.append({"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": str(nbytes)})
        lines.append({"INSTRUCTION": "ALIAS", "NAME": name, "ALIAS": str(alias)})
    return lines


def mutate(op: str, args: list[str], mutated: list[int], time: int = 7) -> dict[str, Any]:
    return {"INSTRUCTION": "MUTATE", "NAME": op, "ARGS": args, "MUTATE": mutated, "TIME": str(time)}


def copy(dst: str, src: str) -> dict[str, Any]:
    return {"INSTRUCTION": "COPY", "DST": dst, "SRC": src}


def copy_from(dst: str, src: str) -> dict[str, Any]:
    return {"INSTRUCTION": "COPY_FROM", "DST": dst, "SRC": src}


def release(name: str) -> dict[str, Any]:
    return {"INSTRUCTION": "RELEASE", "NAME": name}


def parse(tmp_path: Path, *lines: dict[str, Any], releases: bool = True) -> Trace:
    path = tmp_path / "model.log"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Trace.from_dtr_log(path, releases=releases)


def events(trace: Trace) -> list[Event]:
    return list(trace.events())


# The published logs


@published
@pytest.mark.parametrize("model", MODELS)
def test_published_logs(model: str) -> None:
    with open(DTR / "reference.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == model]
    trace = Trace.from_dtr_log(DTR / f"{model}.log.gz")
    whole = {int(row["budget_bytes"]) for row in rows if row["ratio"] == "1.0"}
    assert {trace_facts(trace).peak_bytes} == whole
    assert {int(trace.nanoseconds.sum())} == {int(row["base_compute_ns"]) for row in rows}


@published
@pytest.mark.parametrize("model", MODELS)
def test_published_logs_add_up(model: str) -> None:
    """The lines of a log, counted by kind, add up to what the trace has."""
    with gzip.open(DTR / f"{model}.log.gz", "rt") as file:
        lines = [json.loads(line) for line in file]
    kinds = [line["INSTRUCTION"] for line in lines]
    trace = Trace.from_dtr_log(DTR / f"{model}.log.gz")
    results = sum(len(line["RESULT"]) for line in lines if line["INSTRUCTION"] == "CALL")
    mutated = sum(len(line["MUTATE"]) for line in lines if line["INSTRUCTION"] == "MUTATE")
    assert trace.num_ops == kinds.count("CALL") + kinds.count("MUTATE")
    assert trace.num_tensors == kinds.count("CONSTANT") + results + mutated
    # These programs are tidy: each name is released at most once, and never rebound after that.
    names = kinds.count("CONSTANT") + results + kinds.count("COPY")
    assert len(trace.held) <= names - kinds.count("RELEASE")
    released = {event.tensor for event in trace.events() if isinstance(event, Release)}
    assert released.isdisjoint(trace.held.tolist())
    assert len(released) + len(trace.held) == trace.num_tensors
    assert [event for event in trace.events() if isinstance(event, Mark)] == [Mark("backward")]


@published
@pytest.mark.parametrize("model", MODELS)
def test_published_logs_without_releases(model: str) -> None:
    trace = Trace.from_dtr_log(DTR / f"{model}.log.gz")
    without = Trace.from_dtr_log(DTR / f"{model}.log.gz", releases=False)
    assert events(without) == [event for event in trace.events() if not isinstance(event, Release)]
    assert without.held.tolist() == trace.held.tolist()


@published
@pytest.mark.parametrize("model", MODELS)
def test_published_logs_round_trip(tmp_path: Path, model: str) -> None:
    trace = Trace.from_dtr_log(DTR / f"{model}.log.gz")
    trace.save(tmp_path / "model.trace.gz")
    assert Trace.load(tmp_path / "model.trace.gz") == trace


# What each line means


def test_all_instructions(tmp_path: Path) -> None:
    trace = parse(
        tmp_path,
        *constant("before", 99),
        START,
        *constant("w", 8),
        *call("split", ["w"], {"x": (16, -1), "y": (8, 0)}, time=1_000_000_007),
        *call("t", ["x"], {"z": (16, 0)}),
        {"INSTRUCTION": "ANNOTATE", "ANNOTATION": "BACKWARD"},
        mutate("add_", ["z", "w"], [0]),
        release("z"),
        release("x"),
        release("never seen"),
    )
    assert events(trace) == [
        Constant(0, 8, "constant"),
        Call("split", (0,), (1, 2), (16, 0), (-1, 0), 1.000000007),
        View("t", (1,), (3,), (0,), 5e-9),
        Mark("backward"),
        Mutate("add_", (3, 0), (4,), (16,), (0,), 7e-9),
        Release(3),
        Release(4),
        Release(1),
    ]
    assert trace.nanoseconds.tolist() == [0, 1_000_000_007, 5, 0, 7, 0, 0, 0]
    assert trace.held.tolist() == [0, 2]


def test_a_tensor_goes_with_its_last_name(tmp_path: Path) -> None:
    trace = parse(tmp_path, START, *constant("a", 1), copy("b", "a"), release("a"), copy("c", "b"), release("b"))
    assert (len(trace), trace.held.tolist()) == (1, [0])
    trace = parse(tmp_path, START, *constant("a", 1), copy("b", "a"), release("a"), release("b"))
    assert events(trace)[1:] == [Release(0)]


def test_copy_from_rebinds(tmp_path: Path) -> None:
    trace = parse(tmp_path, START, *constant("a", 1), *constant("b", 2), copy_from("a", "b"), release("b"))
    assert events(trace)[2:] == [Release(0)]
    assert trace.held.tolist() == [1]


def test_copy_from_itself_changes_nothing(tmp_path: Path) -> None:
    trace = parse(tmp_path, START, *constant("a", 1), copy_from("a", "a"))
    assert (len(trace), trace.held.tolist()) == (1, [0])


def test_what_comes_back_was_not_released(tmp_path: Path) -> None:
    lines = [START, *constant("a", 1), release("a"), *constant("b", 1), copy("c", "a")]
    trace = parse(tmp_path, *lines)
    assert (len(trace), trace.held.tolist()) == (2, [0, 1])
    trace = parse(tmp_path, *lines, *call("op", ["c"], {"d": (1, -1)}), release("c"))
    assert events(trace)[3:] == [Release(0)]


def test_releasing_twice_is_once(tmp_path: Path) -> None:
    trace = parse(tmp_path, START, *constant("a", 1), release("a"), release("a"), copy("b", "a"))
    assert events(trace)[1:] == [Release(0)]
    assert trace.held.tolist() == []


def test_mutate_releases_in_order_of_what_it_wrote(tmp_path: Path) -> None:
    trace = parse(tmp_path, START, *constant("a", 1), *constant("b", 2), mutate("op_", ["a", "b"], [1, 0]))
    assert events(trace)[2:] == [Mutate("op_", (0, 1), (2, 3), (2, 1), (1, 0), 7e-9), Release(1), Release(0)]
    # Names keep their places: a, now the second output, comes first.
    assert trace.held.tolist() == [3, 2]


def test_mutate_of_a_tensor_with_another_name(tmp_path: Path) -> None:
    trace = parse(tmp_path, START, *constant("a", 1), copy("b", "a"), mutate("op_", ["b"], [0]))
    assert not any(isinstance(event, Release) for event in trace.events())
    assert trace.held.tolist() == [0, 1]


def test_held_follows_the_order_of_names(tmp_path: Path) -> None:
    trace = parse(
        tmp_path,
        START,
        *constant("a", 1),
        *constant("b", 1),
        *constant("c", 1),
        copy("d", "b"),
        copy_from("a", "c"),
        release("b"),
    )
    # a means tensor 2; b was released but still leads to tensor 1, which d holds; c and d name nothing new.
    assert trace.held.tolist() == [2, 1]


def test_without_releases_the_end_is_the_same(tmp_path: Path) -> None:
    lines = [START, *constant("a", 1), *constant("b", 1), mutate("op_", ["a"], [0]), release("b")]
    trace = parse(tmp_path, *lines, releases=False)
    assert [type(event) for event in trace.events()] == [Constant, Constant, Mutate]
    assert trace.held.tolist() == parse(tmp_path, *lines).held.tolist() == [2]


# Mistakes


@pytest.mark.parametrize(
    ("lines", "line", "message"),
    [
        ([], 0, "no ANNOTATE START line"),
        ([*constant("a", 1)], 2, "no ANNOTATE START line"),
        ([START, "{"], 2, "not JSON"),
        (["{", START], 1, "not JSON"),
        ([START, "[]"], 2, "an object with an INSTRUCTION"),
        ([START, {"NAME": "a"}], 2, "an object with an INSTRUCTION"),
        ([START, {"INSTRUCTION": "JUMP"}], 2, "'JUMP' is not expected here: one of CONSTANT, CALL, "),
        ([START, {"INSTRUCTION": "MEMORY", "NAME": "a", "MEMORY": "1"}], 2, "'MEMORY' is not expected here"),
        ([START, {"INSTRUCTION": "CONSTANT"}], 2, "CONSTANT needs the field NAME"),
        ([START, {"INSTRUCTION": "CONSTANT", "NAME": 5}], 2, "NAME must be a string, not 5"),
        ([START, constant("a", 1)[0]], 2, "the MEMORY line of 'a' is expected here, not end of the log"),
        ([START, constant("a", 1)[0], constant("b", 1)[1]], 3, "the MEMORY line of 'a' is expected here"),
        ([START, *constant("a", -1)], 3, "MEMORY of 'a' is -1, which is negative"),
        ([START, *constant("a", 10**30)], 3, "fit 64 bits"),
        ([START, *constant("a", 1), *constant("a", 1)], 5, "'a' exists already"),
        ([START, *call("op", ["a"], {"b": (1, -1)})], 2, "'a' is not the name of a tensor so far"),
        ([START, *call("op", [], {"b": (1, -2)})], 4, "ALIAS of 'b' is -2"),
        (
            [START, *call("op", [], {"b": (1, 0)})],
            2,
            "output 0 shares the storage of argument 0, but there are 0",
        ),
        ([START, *call("op", [], {"b": (1, -1)}, time=-5)], 2, "seconds must be 0 or more"),
        ([START, *call("op", [], {"b": (1, -1)})[:2]], 3, "the ALIAS line of 'b' is expected"),
        ([START, {**call("op", [], {})[0], "TIME": "soon"}], 2, "TIME must be a whole number, not 'soon'"),
        ([START, {**call("op", [], {})[0], "TIME": 1.5}], 2, "TIME must be a whole number, not 1.5"),
        ([START, {**call("op", [], {})[0], "ARGS": "a"}], 2, "ARGS must be a list, not 'a'"),
        ([START, {**call("op", [], {})[0], "ARGS": [1]}], 2, "ARGS must be a list of strings"),
        ([START, *constant("a", 1), mutate("op_", ["a"], [1])], 4, "MUTATE has 1, but there are 1 ARGS"),
        ([START, *constant("a", 1), mutate("op_", ["a"], [0, 0])], 4, "mutate 'op_': mutated is"),
        ([START, *constant("a", 1), copy("a", "a")], 4, "DST 'a' exists already"),
        ([START, copy("b", "a")], 2, "'a' is not the name of a tensor so far"),
        ([START, *constant("a", 1), copy_from("b", "a")], 4, "'b' is not the name of a tensor so far"),
        (
            [START, *constant("a", 1), release("a"), *call("op", ["a"], {"b": (1, -1)})],
            5,
            "which was released",
        ),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_bad_logs(tmp_path: Path, suffix: str, lines: list[Any], line: int, message: str) -> None:
    path = tmp_path / f"bad.log{suffix}"
    text = "".join((entry if isinstance(entry, str) else json.dumps(entry)) + "\n" for entry in lines)
    path.write_bytes(gzip.compress(text.encode()) if suffix else text.encode())
    with pytest.raises(TraceError, match=message) as error:
        Trace.from_dtr_log(path)
    assert str(error.value).startswith(f"{path}:{line}: ")


def test_truncated_gzip(tmp_path: Path) -> None:
    path = tmp_path / "bad.log.gz"
    path.write_bytes(gzip.compress(json.dumps(START).encode() * 50)[:-9])
    with pytest.raises(TraceError, match="the file is truncated"):
        Trace.from_dtr_log(path)
