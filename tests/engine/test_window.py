"""The cheapest window, against all windows there are."""

from __future__ import annotations

import math
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remint import _core
from tests.support.examples import examples

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


@examples(1500)
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


# Bytes; cost, or None for what cannot be evicted; cost of a move, or None for what cannot be moved; free.
Cell: TypeAlias = tuple[int, float | None, float | None, bool]


@st.composite
def arenas_with_moves(draw: st.DrawFn) -> list[Cell]:
    moves = st.one_of(st.none(), st.floats(0, 1e3, allow_subnormal=False))
    return [(nbytes, cost, None if free else draw(moves), free) for nbytes, cost, free in draw(arenas())]


@examples(1000)
@given(blocks=arenas_with_moves(), nbytes=st.integers(1, 40))
def test_a_clearing_has_room_and_costs_no_more_than_a_window(blocks, nbytes):
    found = _core.cheapest_compaction_window(blocks, nbytes)
    window = _core.cheapest_window([(size, cost, free) for size, cost, _, free in blocks], nbytes)
    if found is None:
        assert window is None
        return
    first, last, num_infinite, cost, evicted = found
    if window is not None:
        assert (num_infinite, cost) <= (window[2], window[3] * (1 + 1e-12))
    inside = range(first, last + 1)
    assert set(evicted) <= set(inside)
    assert sum(blocks[i][0] for i in inside if i in evicted or blocks[i][3]) >= nbytes
    moved = [i for i in inside if i not in evicted and not blocks[i][3]]
    assert all(blocks[i][2] is not None for i in moved)
    costs = [blocks[i][1] for i in evicted]
    assert num_infinite == sum(math.isinf(each) for each in costs)
    finite = [each for each in costs if not math.isinf(each)] + [blocks[i][2] for i in moved]
    assert cost == pytest.approx(math.fsum(finite), rel=1e-12, abs=0)


def at_prices(blocks: list[Cell]) -> list[list[Block]]:
    """The blocks as windows see them at each price: what costs more per byte is moved."""
    per_byte = sorted(
        cost / size
        for size, cost, move, free in blocks
        if not free and cost is not None and not math.isinf(cost) and move is not None
    )
    prices = [math.inf, -1.0, *(per_byte[(len(per_byte) - 1) * i // 8] for i in range(1, 8) if per_byte)]
    return [
        [
            (size, cost, free)
            if free or (cost is not None and (math.isinf(price) or cost <= price * size))
            else (0, move, False)
            for size, cost, move, free in blocks
        ]
        for price in prices
    ]


@examples(1500)
@given(blocks=arenas_with_moves(), nbytes=st.integers(1, 40))
def test_no_price_gives_a_cheaper_clearing(blocks, nbytes):
    """Prices at which no window can be cheaper are not tried."""
    windows = [_core.cheapest_window(priced, nbytes) for priced in at_prices(blocks)]
    found = _core.cheapest_compaction_window(blocks, nbytes)
    best = min((window[2:] for window in windows if window is not None), default=None)
    if best is None:
        assert found is None
        return
    assert found[2] == best[0]
    assert found[3] == pytest.approx(best[1], rel=1e-9, abs=0)


@pytest.mark.parametrize(
    ("blocks", "nbytes", "expected"),
    [
        # What is dear stays, and moves; without moving, the run of three would have to go.
        ([(4, 1.0, 0.1, False), (4, 99.0, 0.1, False), (4, 1.0, 0.1, False)], 8, (0, 2, [0, 2])),
        # What is pinned is no barrier if it can be moved.
        ([(4, 1.0, 0.1, False), (1, None, 0.1, False), (4, 1.0, 0.1, False)], 8, (0, 2, [0, 2])),
        ([(4, 1.0, 0.1, False), (1, None, None, False), (4, 1.0, 0.1, False)], 8, None),
        # Enough is free, but apart: nothing is evicted.
        ([(4, 0.0, None, True), (4, 5.0, 0.1, False), (4, 0.0, None, True), (8, 0.5, 9.0, False)], 8, (0, 2, [])),
        # A move that costs more than what it saves is not made.
        ([(4, 1.0, 9.0, False), (4, 2.0, 9.0, False), (4, 1.0, 9.0, False)], 8, (0, 1, [0, 1])),
    ],
)
def test_small_arenas_with_moves(blocks, nbytes, expected):
    found = _core.cheapest_compaction_window(blocks, nbytes)
    assert (found if found is None else (found[0], found[1], found[4])) == expected
