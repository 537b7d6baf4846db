"""The cheapest window, against all windows there are."""

from __future__ import annotations

import math
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remint import _core

pytestmark = pytest.mark.core

Block: TypeAlias = tuple[int, float | None, bool]  # bytes; cost, or None for what cannot go; free

COSTS = st.one_of(
    st.sampled_from([0.0, 1.0, 2.0, math.inf]),
    st.integers(-300, 300).map(lambda exponent: 10.0**exponent),
    st.floats(0, 1e300, allow_subnormal=False),
)


@st.composite
def arenas(draw: st.DrawFn) -> list[Block]:
    kinds = st.sampled_from(["held", "held", "held", "free", "barrier"])
    blocks: list[Block] = []
    for kind in draw(st.lists(kinds, max_size=14)):
        nbytes = draw(st.integers(1, 8))
        cost = {"held": draw(COSTS), "free": 0.0, "barrier": None}[kind]
        blocks.append((nbytes, cost, kind == "free"))
    return blocks


def price(window: list[Block]) -> tuple[int, float]:
    costs = [0.0 if free else cost for _, cost, free in window]
    return sum(math.isinf(cost) for cost in costs), math.fsum(cost for cost in costs if not math.isinf(cost))


def windows(blocks: list[Block], nbytes: int) -> list[list[Block]]:
    runs = [
        blocks[first:last]
        for first in range(len(blocks))
        for last in range(first + 1, len(blocks) + 1)
        if all(cost is not None for _, cost, _ in blocks[first:last])
    ]
    return [run for run in runs if sum(size for size, _, _ in run) >= nbytes]


def check(blocks: list[Block], nbytes: int) -> None:
    found = _core.cheapest_window(blocks, nbytes)
    possible = windows(blocks, nbytes)
    if not possible:
        assert found is None
        return
    first, last, num_infinite, cost = found
    assert blocks[first : last + 1] in possible
    assert (num_infinite, cost) == (
        price(blocks[first : last + 1])[0],
        pytest.approx(price(blocks[first : last + 1])[1], rel=1e-12, abs=0),
    )
    best = min(map(price, possible))
    assert num_infinite == best[0]
    assert cost == pytest.approx(best[1], rel=1e-12, abs=0)


@settings(max_examples=1500, deadline=None)
@given(blocks=arenas(), nbytes=st.integers(1, 40))
def test_no_window_is_cheaper(blocks, nbytes):
    check(blocks, nbytes)


@given(blocks=arenas())
def test_the_whole_arena_and_no_byte_more(blocks):
    whole = sum(size for size, _, _ in blocks)
    check(blocks, whole)
    assert _core.cheapest_window(blocks, whole + 1) is None


@pytest.mark.parametrize(
    ("blocks", "nbytes", "expected"),
    [
        ([(4, 1.0, False), (4, 9.0, False), (4, 9.0, False)], 4, (0, 0)),  # the low end
        ([(4, 9.0, False), (4, 9.0, False), (4, 1.0, False)], 4, (2, 2)),  # the high end
        ([(4, 1.0, False), (4, 9.0, False), (4, None, False), (8, 99.0, False)], 8, (0, 1)),
        ([(4, 1.0, False), (4, None, False), (4, 1.0, False), (8, 99.0, False)], 8, (3, 3)),
        ([(2, 0.0, True), (4, 5.0, False), (2, 0.0, True), (8, 5.5, False)], 8, (0, 2)),  # free bytes help
        ([(4, math.inf, False), (4, 1.0, False), (4, math.inf, False)], 8, (0, 1)),  # one infinity, not two
        ([(4, 1e300, False), (4, 1e-300, False), (4, 2e-300, False)], 4, (1, 1)),  # nothing of 1e300 remains
        ([(4, math.inf, False), (4, 3.0, False), (4, 2.0, False)], 8, (1, 2)),  # nor of infinity
        ([(4, 1.0, False), (4, 1.0, False)], 4, (0, 0)),  # equal: the lowest address
        ([(8, 1.0, False), (4, 1.0, False)], 4, (1, 1)),  # equal cost: fewer bytes evicted
        ([(4, None, False)], 1, None),
        ([], 1, None),
    ],
)
def test_small_arenas(blocks, nbytes, expected):
    found = _core.cheapest_window(blocks, nbytes)
    assert (found if found is None else found[:2]) == expected


def test_huge_costs_do_not_hide_small_ones():
    """Sums that are taken back again lose what is small beside what has left the window."""
    blocks = [(1, 10.0 ** (300 - 5 * i), False) for i in range(120)]
    check(blocks, 3)
    check(blocks[::-1], 3)
    check(blocks[::2] + blocks[::-2], 5)
