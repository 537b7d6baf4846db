"""Events that only recorded programs have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import remint
import remint.trace.files
import remint.trace.trace
from remint.errors import TraceError
from remint.trace import Trace, TraceBuilder


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
