"""The last of several equal steps, cut out of their trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from remint import Trace, TraceBuilder, simulate
from remint.trace.events import Constant
from remint.trace.last_step import last_step

pytestmark = pytest.mark.core


def training(num_steps: int, *, extra_op: bool = False) -> Trace:
    """A loop with a weight elsewhere, a gradient that lives on to the next step, and a state with two names."""
    builder = TraceBuilder()
    weight = builder.constant(64, where="elsewhere")
    state = builder.constant(256)
    if extra_op:
        builder.view("once", state)
    name = gradient = None
    for _ in range(num_steps):
        (x,) = builder.call("f", [weight], [1024], 1.0)
        (y,) = builder.call("g", [x, state if name is None else name], [512], 2.0)
        if gradient is not None:
            builder.release(gradient)
        (gradient,) = builder.call("f backward", [x, y], [128], 3.0, requests=[("allocate", 64), ("allocate", 128, 0)])
        builder.release(x)
        builder.release(y)
        (updated,) = builder.mutate("step", [state, gradient], [0], 0.25)
        builder.release(state)
        if name is not None:
            builder.release(name)
        state, name = updated, builder.view("name", updated)
    return builder.build()


@pytest.mark.parametrize("num_steps", [2, 3, 5])
def test_it_takes_what_the_others_take(num_steps: int, tmp_path: Path) -> None:
    whole = training(num_steps)
    cut = last_step(whole, num_steps)
    assert cut is not None
    names = [event.name for event in cut.events() if hasattr(event, "seconds")]
    assert names == ["f", "g", "f backward", "step", "name"]
    # The file format checks everything that makes a trace legal.
    cut.save(tmp_path / "cut.trace")
    assert list(Trace.load(tmp_path / "cut.trace").events()) == list(cut.events())
    runs = [simulate(each, budget=1 << 20, policy="coop", memory="arena") for each in (whole, cut)]
    assert runs[0].peak_bytes == runs[1].peak_bytes
    # The state has two names when the step begins, and is one constant.
    constants = [event for event in cut.events() if isinstance(event, Constant)]
    assert sorted((each.nbytes, each.where) for each in constants) == [
        (64, "elsewhere"),
        (128, "arena"),
        (256, "arena"),
    ]


def test_a_single_step_is_itself() -> None:
    whole = training(1)
    cut = last_step(whole, 1)
    assert cut is not None
    assert [type(event) for event in cut.events()] == [type(event) for event in whole.events()]
    assert cut.seconds == whole.seconds


def test_steps_that_differ_have_no_last_one() -> None:
    assert last_step(training(2, extra_op=True), 2) is None
    assert last_step(TraceBuilder().build(), 1) is None
