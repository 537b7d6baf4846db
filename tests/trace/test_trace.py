from __future__ import annotations

import doctest
import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import remint.trace.files
import remint.trace.trace
from remint.errors import TraceError
from remint.trace import Trace, TraceBuilder
from remint.trace.events import Call, Constant, Mark, Mutate, Release, View
from tests.support.trace_oracle import trace_facts
from tests.support.trace_strategies import traces


def small() -> Trace:
    """One event of each kind, and then some."""
    builder = TraceBuilder()
    weight = builder.constant(4096, "weight")
    (activation,) = builder.call("conv", [weight], [65536], 0.0025, source="net.py:12")
    flat = builder.view("flatten", activation, 1e-6)
    (positive,) = builder.mutate("relu_", [flat, activation], [1], 1e-4)
    builder.release(activation)
    builder.mark("backward")
    builder.call(
        "split",
        [positive],
        [0, 128],
        0.001,
        aliases=[0, -1],
        source="net.py:13",
        requests=[("allocate", 512), ("allocate", 256, 1), ("free", 0)],
    )
    return builder.build()


EVENTS = [
    Constant(0, 4096, "weight"),
    Call("conv", (0,), (1,), (65536,), (-1,), 0.0025, "net.py:12"),
    View("flatten", (1,), (2,), (0,), 1e-6),
    Mutate("relu_", (2, 1), (3,), (65536,), (1,), 1e-4),
    Release(1),
    Mark("backward"),
    Call(
        "split",
        (3,),
        (4, 5),
        (0, 128),
        (0, -1),
        0.001,
        "net.py:13",
        (("allocate", 512), ("allocate", 256, 1), ("free", 0)),
    ),
]

LINES = """\
{"format": "remint-trace", "version": 2}
{"event": "constant", "name": "weight", "outputs": [0], "bytes": [4096]}
{"event": "call", "name": "conv", "args": [0], "outputs": [1], "bytes": [65536], "seconds": 0.0025, "source": "net.py:12"}
{"event": "view", "name": "flatten", "args": [1], "outputs": [2], "aliases": [0], "seconds": 1e-06}
{"event": "mutate", "name": "relu_", "args": [2, 1], "outputs": [3], "mutated": [1], "seconds": 0.0001}
{"event": "release", "tensor": 1}
{"event": "mark", "name": "backward"}
{"event": "call", "name": "split", "args": [3], "outputs": [4, 5], "bytes": [0, 128], "aliases": [0, -1], \
"seconds": 0.001, "source": "net.py:13", "requests": [["allocate", 512], ["allocate", 256, 1], ["free", 0]]}
{"event": "end", "events": 7}
"""  # noqa: E501


# The columns


def test_columns() -> None:
    trace = small()
    columns = {
        "kinds": ([0, 1, 2, 3, 4, 5, 1], np.uint8),
        "nanoseconds": ([0, 2_500_000, 1000, 100_000, 0, 0, 1_000_000], np.int64),
        "arg_offsets": ([0, 0, 1, 2, 4, 5, 5, 6], np.int64),
        "args": ([0, 1, 2, 1, 1, 3], np.int32),
        "out_offsets": ([0, 1, 2, 3, 4, 4, 4, 6], np.int64),
        "nbytes": ([4096, 65536, 0, 65536, 0, 128], np.int64),
        "aliases": ([-1, -1, 0, 1, 0, -1], np.int32),
        "name_ids": ([0, 1, 2, 3, -1, 4, 5], np.int32),
        "source_ids": ([-1, 0, -1, -1, -1, -1, 1], np.int32),
        "request_offsets": ([0, 0, 0, 0, 0, 0, 0, 3], np.int64),
        "request_bytes": ([512, 256, -1], np.int64),
        "request_outputs": ([-1, 1, -1], np.int32),
        "held": ([0, 2, 3, 4, 5], np.int32),
    }
    for name, (values, dtype) in columns.items():
        column = getattr(trace, name)
        assert column.dtype == dtype, name
        assert column.tolist() == values, name
    assert trace.names == ("weight", "conv", "flatten", "relu_", "backward", "split")
    assert trace.sources == ("net.py:12", "net.py:13")


def test_counts() -> None:
    trace = small()
    assert (trace.num_events, len(trace), trace.num_ops, trace.num_tensors) == (7, 7, 4, 6)
    assert trace.seconds == 0.003601
    assert repr(trace) == "<Trace: 7 events, 4 ops in 3.6 ms, 6 tensors>"
    assert list(trace.events()) == EVENTS


def test_empty() -> None:
    trace = TraceBuilder().build()
    assert (len(trace), trace.num_ops, trace.num_tensors, trace.seconds) == (0, 0, 0, 0)
    assert list(trace.events()) == []
    assert trace.arg_offsets.tolist() == trace.out_offsets.tolist() == trace.request_offsets.tolist() == [0]
    assert repr(trace) == "<Trace: 0 events, 0 ops in 0 s, 0 tensors>"


def test_immutable() -> None:
    for trace in (small(), pickle.loads(pickle.dumps(small()))):
        assert trace == small()
        for name, column in vars(trace).items():
            if isinstance(column, np.ndarray):
                assert not column.flags.writeable, name
        with pytest.raises(AttributeError):
            trace.names = ()
        with pytest.raises(TypeError):
            hash(trace)


def test_a_trace_does_not_follow_its_builder() -> None:
    builder = TraceBuilder()
    builder.constant(1)
    first = builder.build()
    builder.release(0)
    assert len(first) == 1
    assert len(builder.build()) == 2
    assert first != builder.build()
    assert first != "first"


def test_an_op_whose_outputs_all_alias_is_a_view() -> None:
    builder = TraceBuilder()
    whole = builder.constant(8)
    assert builder.call("chunk", [whole], [0, 0], 0.0, aliases=[0, 0]) == (1, 2)
    builder.call("item", [1], [], 0.0)
    assert list(builder.build().events())[1:] == [
        View("chunk", (0,), (1, 2), (0, 0), 0.0),
        Call("item", (1,), (), (), (), 0.0),
    ]


def test_a_view_of_a_view_written_in_place_has_the_size_of_the_storage() -> None:
    builder = TraceBuilder()
    (whole,) = builder.call("op", [], [100], 0.0)
    part = builder.view("slice", builder.view("slice", whole))
    (written,) = builder.mutate("zero_", [part], [0], 0.0)
    again = builder.view("slice", written)
    builder.mutate("zero_", [again], [0], 0.0)
    assert builder.build().nbytes.tolist() == [100, 0, 0, 100, 0, 100]


def test_numpy_numbers_are_numbers() -> None:
    builder = TraceBuilder()
    weight = builder.constant(np.int64(8))
    builder.call("op", np.array([weight]), np.array([16, 32]), np.float32(0.5), aliases=np.array([-1, -1]))
    (event,) = list(builder.build(held=np.array([2])).events())[1:]
    assert event == Call("op", (0,), (1, 2), (16, 32), (-1, -1), 0.5)


# Mistakes


def with_weight(method: str, *args: Any, **kwargs: Any) -> None:
    builder = TraceBuilder()
    builder.constant(8, "weight")
    builder.constant(8, "gone")
    builder.release(1)
    before = builder.build()
    try:
        getattr(builder, method)(*args, **kwargs)
    finally:
        assert builder.build() == before


@pytest.mark.parametrize(
    ("method", "args", "kwargs", "message"),
    [
        ("constant", (-1,), {}, "event 3, constant 'constant': bytes must be 0 or more"),
        ("constant", (2**63,), {}, "fit 64 bits"),
        ("constant", (1.5,), {}, "bytes must be a whole number, not 1.5"),
        ("constant", (True,), {}, "bytes must be a whole number, not True"),
        ("constant", (1, None), {}, "the name must be a string"),
        ("call", ("op", [2], [1], 0.0), {}, "argument 0 is tensor 2, which does not exist: .* 0 to 1"),
        ("call", ("op", [0, -1], [1], 0.0), {}, "argument 1 is tensor -1, which does not exist"),
        ("call", ("op", [1], [1], 0.0), {}, "event 3, call 'op': argument 0 is tensor 1, which was released"),
        ("call", ("op", ["0"], [1], 0.0), {}, "argument 0 must be a whole number, not '0'"),
        ("call", ("op", 0, [1], 0.0), {}, "args must be a list, not 0"),
        ("call", ("op", [0], 1, 0.0), {}, "bytes must be a list, not 1"),
        ("call", ("op", [0], [-1], 0.0), {}, "bytes must be 0 or more"),
        ("call", ("op", [0], [1], -1.0), {}, "seconds must be 0 or more, .*, not -1.0"),
        ("call", ("op", [0], [1], float("nan")), {}, "seconds must be 0 or more, .*, not nan"),
        ("call", ("op", [0], [1], float("inf")), {}, "seconds must be 0 or more, .*, not inf"),
        ("call", ("op", [0], [1], 1e7), {}, "at most 2251800, not 1"),
        ("call", ("op", [0], [1], "1"), {}, "seconds must be a number, not '1'"),
        ("call", ("op", [0], [1], 0.0), {"source": 12}, "source must be a string"),
        ("call", ("op", [0], [1], 0.0), {"aliases": [0]}, "output 0 shares .* argument 0, and has 1 bytes"),
        ("call", ("op", [0], [0], 0.0), {"aliases": [1]}, "argument 1, but there are 1, from 0"),
        ("call", ("op", [0], [0], 0.0), {"aliases": [-2]}, "argument -2, but there are 1"),
        ("call", ("op", [0], [0], 0.0), {"aliases": []}, "0 aliases for 1 outputs"),
        ("view", ("t", 1), {}, "which was released"),
        ("mutate", ("add_", [0], [1], 0.0), {}, "mutate 'add_': mutated has argument 1, but there are 1"),
        ("mutate", ("add_", [0], [], 0.0), {}, "at least one"),
        ("mutate", ("add_", [0], [0, 0], 0.0), {}, "name each argument that is written once"),
        ("release", (1,), {}, "event 3, release: argument 0 is tensor 1, which was released before"),
        ("release", (2,), {}, "which does not exist"),
        ("release", (None,), {}, "must be a whole number, not None"),
        ("mark", (3,), {}, "the name must be a string"),
        ("build", ([1],), {}, "held at the end: tensor 1 was released before"),
        ("build", ([0, 0],), {}, "held at the end: a tensor is named twice"),
        ("build", ([2],), {}, "held at the end: tensor 2 does not exist: there are 2, from 0"),
    ],
)  # fmt: skip
def test_mistakes(method: str, args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        with_weight(method, *args, **kwargs)


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([("allocate", 8)], "never allocate output 0"),
        ([("allocate", 7, 0)], "output 0 needs 8 bytes"),
        ([("allocate", 8, 0), ("allocate", 8, 0)], "is allocated once"),
        (
            [("allocate", 8, 0), ("allocate", 8, 1)],
            "each output with fresh bytes is allocated once, and no other",
        ),
        ([("allocate", 8, 2)], "and no other"),
        ([("allocate", 8, 0), ("free", 0)], "only scratch"),
        ([("allocate", 8, 0), ("free", 1)], "allocated before"),
        ([("allocate", 8, 0), ("allocate", 1), ("free", 1), ("free", 1)], "and once"),
        ([("allocate", -8, 0)], "bytes must be 0 or more"),
        ([("grow", 8)], "is not a request"),
        ([8], "a request must be a list"),
        (8, "requests must be a list"),
    ],
)
def test_mistakes_in_requests(requests: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        with_weight("call", "split", [0], [8, 0], 0.0, aliases=[-1, 0], requests=requests)


def test_no_requests_and_empty_requests_are_the_same() -> None:
    first, second = TraceBuilder(), TraceBuilder()
    first.call("op", [], [8], 0.0)
    second.call("op", [], [8], 0.0, requests=[])
    assert first.build() == second.build()


def test_sums_fit_64_bits() -> None:
    builder = TraceBuilder()
    builder.constant(2**63 - 1)
    builder.build()
    builder.constant(1)
    with pytest.raises(TraceError, match="64 bits"):
        builder.build()


# Files


@pytest.mark.parametrize("name", ["step.trace", "step.trace.gz"])
@given(trace=traces())
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, name: str, trace: Trace) -> None:
    path = tmp_path_factory.mktemp("traces") / name
    trace.save(path)
    again = Trace.load(str(path))
    assert again == trace
    assert list(again.events()) == list(trace.events())


@given(trace=traces())
def test_events_rebuild_the_trace(trace: Trace) -> None:
    builder = TraceBuilder()
    for event in trace.events():
        match event:
            case Constant():
                assert builder.constant(event.nbytes, event.name) == event.output
            case Call() | View():
                nbytes = event.nbytes if isinstance(event, Call) else [0] * len(event.outputs)
                options: dict[str, Any] = {"source": event.source, "requests": event.requests}
                outputs = builder.call(event.name, event.args, nbytes, event.seconds, aliases=event.aliases, **options)
                assert outputs == event.outputs
            case Mutate():
                options = {"source": event.source, "requests": event.requests}
                outputs = builder.mutate(event.name, event.args, event.mutated, event.seconds, **options)
                assert outputs == event.outputs
            case Release():
                builder.release(event.tensor)
            case Mark():
                builder.mark(event.name)
    assert builder.build(trace.held) == trace


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


def recorded() -> Trace:
    """All that only recorded programs have."""
    builder = TraceBuilder()
    weight = builder.constant(4096, where="elsewhere")
    buffer = builder.constant(512, where="kept")
    (zeros,) = builder.mutate("zero_", [buffer], [0], 1e-6, overwritten=[0])
    builder.release(buffer)
    requests: list[Any] = [("allocate", 64), ("allocate", 256, 0), ("free", 0), ("allocate", 128, 1)]
    x, _workspace = builder.call("linear", [weight, zeros], [256, 128], 1e-5, requests=requests, kept=[1])
    builder.mutate("batch_norm", [x, weight], [], 1e-5, nbytes=[256], effects=[1])
    builder.mutate("add_", [], [], 1e-6, effects=[])
    (noise,) = builder.call("empty_like", [x], [256], 1e-6, once=[0])
    builder.materialize(x)
    builder.pin(x)
    builder.pin(noise, fixed=True)
    builder.release(weight)
    return builder.build()


def test_recorded_programs_survive_a_file(tmp_path: Path) -> None:
    trace = recorded()
    trace.save(tmp_path / "step.trace")
    assert Trace.load(tmp_path / "step.trace") == trace
    assert trace.constant_bytes == 512, "what is elsewhere takes nothing of the budget"
    kinds = [type(event).__name__ for event in trace.events()]
    assert kinds[-4:] == ["Materialize", "Pin", "Pin", "Release"]


@pytest.mark.parametrize("memory", ["ideal", "arena"])
def test_recorded_programs_run_on_both_memories(memory: str) -> None:
    run = remint.simulate(recorded(), budget=4096, memory=memory, check=True)
    assert run.status == "ok"
    assert run.peak_bytes == {"ideal": 512 + 512 + 256 + 128 + 256 + 256, "arena": 512 + 256 + 128 + 256 + 256}[memory]


@pytest.mark.parametrize(
    ("problem", "add"),
    [
        ("where is one of", lambda builder: builder.constant(1, where="here")),
        ("these outputs come last", lambda builder: builder.call("op", [], [1, 1], 0.0, kept=[0])),
        ("no fresh bytes", lambda builder: builder.call("op", [0], [0], 0.0, aliases=[0], once=[0])),
        ("some of mutated", lambda builder: builder.mutate("op", [0, 0], [0], 0.0, overwritten=[1])),
        ("name it once", lambda builder: builder.mutate("op", [0], [0], 0.0, effects=[0])),
        ("each once", lambda builder: builder.mutate("op", [0], [], 0.0, effects=[1])),
    ],
)
def test_mistakes_in_what_recorded_programs_have(problem: str, add: Callable[[TraceBuilder], Any]) -> None:
    builder = TraceBuilder()
    builder.constant(8)
    with pytest.raises(TraceError, match=problem):
        add(builder)
    assert builder.num_events == 1


def test_gzip_is_reproducible(tmp_path: Path) -> None:
    small().save(tmp_path / "a.gz")
    small().save(tmp_path / "b.gz")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()).decode() == LINES


def test_blank_lines_and_spaces_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "step.trace"
    path.write_text("\n" + LINES.replace("\n", " \r\n\n  ") + "\n\n")
    assert Trace.load(path) == small()


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


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Trace.load(tmp_path / "nothing")


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


# Facts


@given(trace=traces())
def test_facts(trace: Trace) -> None:
    facts = trace_facts(trace)
    assert trace.peak_bytes == facts.peak_bytes
    assert trace.min_budget_bytes == facts.min_budget_bytes
    assert trace.constant_bytes == facts.constant_bytes


def test_facts_by_hand() -> None:
    builder = TraceBuilder()
    weight = builder.constant(100)
    (a,) = builder.call("op", [weight], [10], 1.0)  # 110 live
    part = builder.view("slice", a)
    builder.release(a)  # the view keeps its storage
    (b,) = builder.mutate("add_", [part], [0], 1.0)  # 120 live, if made afresh
    builder.release(part)
    (c, d) = builder.call("split", [b, b, weight], [20, 3], 1.0)  # 133 live, all of it needed at once
    for tensor in (b, c, weight):
        builder.release(tensor)
    builder.call("op", [d], [40], 1.0)  # 43 live: the constant is let go of
    trace = builder.build()
    assert (trace.peak_bytes, trace.min_budget_bytes, trace.constant_bytes) == (133, 133, 100)


@pytest.mark.parametrize("module", [remint.trace.trace, remint.trace.files])
def test_doctests(module: Any) -> None:
    assert doctest.testmod(module).failed == 0
