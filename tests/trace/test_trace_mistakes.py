"""Mistakes in what a builder is given: each is reported, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from remint.errors import TraceError
from remint.trace import TraceBuilder


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
