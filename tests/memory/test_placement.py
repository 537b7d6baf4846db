"""Planned addresses: no two blocks share a byte at any time."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remint import _core
from tests.support.examples import examples

pytestmark = pytest.mark.core

ALIGNMENT = 64


@dataclass(frozen=True)
class Block:
    nbytes: int
    born: int
    dies: int
    address: int | None = None

    def lives_with(self, other: Block) -> bool:
        return bool(set(range(self.born, self.dies)) & set(range(other.born, other.dies)))


@dataclass(frozen=True)
class Placed:
    addresses: list[int]
    top: int
    fits: bool
    moves: int
    looks: int


def place(blocks: list[Block], limit: int, *, max_moves: int = 300, seed: int = 0) -> Placed:
    addresses, *rest = _core.place(
        nbytes=np.array([block.nbytes for block in blocks], dtype=np.int64),
        born=np.array([block.born for block in blocks], dtype=np.int64),
        dies=np.array([block.dies for block in blocks], dtype=np.int64),
        addresses=np.array([-1 if block.address is None else block.address for block in blocks], dtype=np.int64),
        limit=limit,
        max_moves=max_moves,
        seed=seed,
    )
    return Placed(addresses.tolist(), *rest)


def peak(blocks: list[Block]) -> int:
    times = {block.born for block in blocks}
    return max((sum(b.nbytes for b in blocks if b.born <= time < b.dies) for time in times), default=0)


def overlap(low: int, nbytes: int, other: int, other_bytes: int) -> bool:
    return low < other + other_bytes and other < low + nbytes


@st.composite
def lifetimes(draw: st.DrawFn, *, obstacles: bool = True, most: int = 30) -> list[Block]:
    blocks: list[Block] = []
    for _ in range(draw(st.integers(0, most))):
        born = draw(st.integers(0, 12))
        block = Block(draw(st.integers(1, 9)) * ALIGNMENT, born, born + draw(st.integers(1, 12)))
        if obstacles and draw(st.integers(0, 3)) == 0:
            address = draw(st.integers(0, 30)) * ALIGNMENT
            given = [b for b in blocks if b.address is not None and b.lives_with(block)]
            if not any(overlap(address, block.nbytes, b.address, b.nbytes) for b in given if b.address is not None):
                block = Block(block.nbytes, block.born, block.dies, address)
        blocks.append(block)
    return blocks


@examples(300)
@given(
    blocks=lifetimes(), slack=st.integers(-20, 20), moves=st.sampled_from([0, 1, 2, 40, 400]), seed=st.integers(0, 9)
)
def test_no_two_blocks_share_a_byte(blocks, slack, moves, seed):
    limit = peak(blocks) + slack * ALIGNMENT
    placed = place(blocks, limit, max_moves=moves)
    for (block, at), (other, other_at) in itertools.combinations(zip(blocks, placed.addresses, strict=True), 2):
        assert not (block.lives_with(other) and overlap(at, block.nbytes, other_at, other.nbytes))
    for block, at in zip(blocks, placed.addresses, strict=True):
        assert at >= 0
        assert at % ALIGNMENT == 0
        assert block.address in (None, at)
    assert placed.top == max((at + b.nbytes for b, at in zip(blocks, placed.addresses, strict=True)), default=0)
    assert placed.top >= peak(blocks)
    assert placed.fits == (placed.top <= limit)
    assert placed.moves <= moves
    assert placed == place(blocks, limit, max_moves=moves)


def least_top(blocks: list[Block]) -> int:
    """The lowest top there is: first fit in every order finds it, since blocks can slide down."""
    best = 10**18
    for order in itertools.permutations([i for i, block in enumerate(blocks) if block.address is None]):
        at = {i: block.address for i, block in enumerate(blocks) if block.address is not None}
        for i in order:
            rivals = [(at[j], blocks[j].nbytes) for j in at if blocks[i].lives_with(blocks[j])]
            starts = [0, *(low + nbytes for low, nbytes in rivals)]
            at[i] = min(a for a in starts if not any(overlap(a, blocks[i].nbytes, *rival) for rival in rivals))
        best = min(best, max(at[i] + blocks[i].nbytes for i in at))
    return best


@examples(150)
@given(blocks=lifetimes(most=6).filter(bool))
def test_small_steps_fit_where_anything_fits(blocks):
    best = least_top(blocks)
    placed = place(blocks, best, max_moves=3000)
    assert placed.fits
    assert placed.top == best
    assert not place(blocks, best - 1, max_moves=300).fits


@pytest.mark.parametrize("seed", range(5))
def test_steps_that_fill_memory_exactly_are_found(seed):
    """Memory x time is cut into rectangles at random, so a placement without a gap exists."""
    rng = random.Random(seed)
    pieces = [Block(64, 0, 64, 0)]
    while len(pieces) < 24:
        piece = pieces.pop(rng.randrange(len(pieces)))
        low, in_space = piece.address, rng.random() < 0.5
        length = piece.nbytes if in_space else piece.dies - piece.born
        if length < 2:
            pieces.append(piece)
            continue
        cut = rng.randrange(1, length)
        if in_space:
            pieces += [Block(cut, piece.born, piece.dies, low)]
            pieces += [Block(piece.nbytes - cut, piece.born, piece.dies, low + cut)]
        else:
            pieces += [Block(piece.nbytes, piece.born, piece.born + cut, low)]
            pieces += [Block(piece.nbytes, piece.born + cut, piece.dies, low)]
    blocks = [Block(piece.nbytes, piece.born, piece.dies) for piece in pieces]
    assert peak(blocks) == 64
    assert place(blocks, 64 + 8, max_moves=20_000).fits


def nested(layers: int, seed: int = 0) -> list[Block]:
    """Every activation lives from its forward op to its backward op; scratch lives for one request."""
    rng = random.Random(seed)
    requests: list[Block] = []
    deaths = {}
    time = 0
    for layer in range(layers):
        deaths[layer] = 4 * layers - 2 * layer
        requests.append(Block(rng.randrange(1, 40) * ALIGNMENT, time, deaths[layer]))
        requests.append(Block(rng.randrange(1, 40) * ALIGNMENT, time + 1, time + 2))
        time += 2
    for _ in range(layers):
        requests.append(Block(rng.randrange(1, 40) * ALIGNMENT, time, time + 1))
        time += 2
    return requests


@pytest.mark.parametrize("layers", [1, 2, 10, 300])
def test_nested_lifetimes_need_no_more_than_the_byte_peak(layers):
    blocks = nested(layers)
    placed = place(blocks, peak(blocks), max_moves=0)
    assert placed.fits
    assert placed.top == peak(blocks)


def test_the_search_goes_on_where_first_fit_fails():
    steps = [random_step(120, seed) for seed in range(20)]
    first, searched = ([place(s, peak(s), max_moves=moves).top for s in steps] for moves in (0, 20_000))
    assert all(after <= before for before, after in zip(first, searched, strict=True))
    missed = [(step, after) for step, before, after in zip(steps, first, searched, strict=True) if before > peak(step)]
    assert missed
    assert all(after == peak(step) for step, after in missed)


def random_step(n: int, seed: int) -> list[Block]:
    rng = random.Random(seed)
    blocks = []
    for born in range(n):
        life = n - 2 * born if rng.random() < 0.4 and 2 * born < n - 1 else rng.randrange(1, 8)
        blocks.append(Block(rng.choice([1, 2, 3, 4, 7, 16, 40]) * ALIGNMENT, born, born + life))
    return blocks


def test_first_fit_does_not_look_at_all_pairs():
    """All pairs would be a hundred times as many. It takes 16 times as many looks."""
    looks = [place(nested(layers), 10**12).looks for layers in (1_000, 10_000)]
    assert looks[1] < 25 * looks[0]


def test_hard_orders_are_given_up():
    """Only the first order has to end: the others stop after a fixed number of looks per block."""
    blocks = random_step(4_000, seed=0)
    first = place(blocks, 10**12).looks
    assert place(blocks, 0, max_moves=0).looks <= first + 3 * 1_100 * len(blocks)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([Block(0, 0, 1)], "block 0 has no bytes"),
        ([Block(1, 0, 1), Block(1, 3, 3)], "block 1 dies before it is born"),
        ([Block(1, 0, 1, -7)], "block 0 has a negative address"),
        ([Block(4, 0, 2, 0), Block(4, 1, 3, 3)], "two blocks with given addresses overlap at address 3"),
    ],
)
def test_mistakes_are_named(blocks, message):
    with pytest.raises(ValueError, match=message):
        place(blocks, 100)


def test_given_addresses_may_follow_each_other_in_time():
    blocks = [Block(4, 0, 2, 0), Block(4, 2, 3, 2), Block(2, 0, 3)]
    placed = place(blocks, 8)
    assert placed.addresses == [0, 2, 6]


@pytest.mark.parametrize(
    "blocks",
    [
        # Large blocks first, and of the rest those that live long.
        [(2, 0, 5), (8, 1, 2), (2, 2, 7), (3, 3, 7), (3, 4, 6), (3, 5, 6), (1, 6, 7)],
        # Blocks of the times at which most bytes live first.
        [(3, 0, 4), (3, 1, 2), (1, 2, 3), (3, 3, 6), (2, 4, 6), (2, 5, 6)],
    ],
)
def test_some_blocks_need_another_order(blocks: list[tuple[int, int, int]]):
    """By size, lifetime, area or birth alone, first fit does not reach the byte peak."""
    given = [Block(nbytes * ALIGNMENT, born, dies) for nbytes, born, dies in blocks]
    assert place(given, peak(given), max_moves=0).fits
