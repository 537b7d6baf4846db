"""The arena against a plain map of bytes."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from remint import _core
from tests.support.examples import examples

pytestmark = pytest.mark.core

ALIGNMENT = 4
UNITS = 24
FREE = -1


class ArenaMachine(RuleBasedStateMachine):
    """`units` says which storage owns each aligned piece of the arena."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = _core.Arena(budget=UNITS * ALIGNMENT + 3, alignment=ALIGNMENT)
        self.units = [FREE] * UNITS
        self.ids: dict[int, int] = {}  # storage to block
        self.storages = 0

    def took(self, block: int, first: int, count: int) -> None:
        assert set(self.units[first : first + count]) == {FREE}
        storage, self.storages = self.storages, self.storages + 1
        self.units[first : first + count] = [storage] * count
        self.ids[storage] = block
        self.arena.own(block, storage)

    @rule(nbytes=st.integers(0, 40), high=st.booleans())
    def allocate(self, nbytes, high):
        count = max(1, -(-nbytes // ALIGNMENT))
        fits = any(self.units[i : i + count] == [FREE] * count for i in range(UNITS - count + 1))
        block = self.arena.allocate(nbytes, high=high)
        assert (block is not None) == fits
        if block is not None:
            self.took(block, self.arena.address(block) // ALIGNMENT, count)

    @rule(unit=st.integers(0, UNITS), nbytes=st.integers(0, 40))
    def allocate_at(self, unit, nbytes):
        count = max(1, -(-nbytes // ALIGNMENT))
        block = self.arena.allocate_at(unit * ALIGNMENT, nbytes)
        assert (block is not None) == (self.units[unit : unit + count] == [FREE] * count)
        if block is not None:
            assert self.arena.address(block) == unit * ALIGNMENT
            self.took(block, unit, count)

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def free(self, data):
        storage = data.draw(st.sampled_from(sorted(self.ids)))
        self.arena.free(self.ids.pop(storage))
        self.units = [FREE if owner == storage else owner for owner in self.units]

    @rule(on=st.booleans())
    def index(self, on):
        self.arena.index_addresses(on)

    @rule(data=st.data())
    def compact(self, data):
        """All blocks that may move slide down as far as the others let them."""
        stays = data.draw(st.sets(st.sampled_from(sorted(self.ids)))) if self.ids else set()
        order = list(dict.fromkeys(owner for owner in self.units if owner != FREE))
        before = {storage: self.units.index(storage) for storage in order}
        counts = {storage: self.units.count(storage) for storage in order}
        moves = self.arena.compact(0, self.arena.budget, lambda storage: storage not in stays)
        after, low = {}, 0
        for storage in order:
            after[storage] = before[storage] if storage in stays else low
            low = after[storage] + counts[storage]
        changed = [(s, before[s] * ALIGNMENT, after[s] * ALIGNMENT) for s in order if after[s] != before[s]]
        assert moves == changed
        self.units = [FREE] * UNITS
        for storage in order:
            self.units[after[storage] : after[storage] + counts[storage]] = [storage] * counts[storage]

    @invariant()
    def agrees(self):
        self.arena.check()
        assert self.arena.used == ALIGNMENT * sum(owner != FREE for owner in self.units)
        for storage, block in self.ids.items():
            assert self.arena.address(block) == self.units.index(storage) * ALIGNMENT


TestArena = ArenaMachine.TestCase
TestArena.settings = examples(100)


def test_compaction_of_everything_leaves_one_free_block():
    arena = _core.Arena(budget=100, alignment=1)
    blocks = [arena.allocate(10) for _ in range(10)]
    for storage, block in enumerate(blocks):
        arena.own(block, storage)
    for block in blocks[::2]:
        arena.free(block)
    assert arena.largest_free == 10
    moves = arena.compact(0, arena.budget, lambda _: True)
    assert moves == [(storage, storage * 10, place * 10) for place, storage in enumerate((1, 3, 5, 7, 9))]
    assert arena.largest_free == 50
    assert [arena.address(block) for block in blocks[1::2]] == [0, 10, 20, 30, 40]
    arena.check()


@pytest.mark.parametrize(("address", "nbytes"), [(-4, 4), (2, 4), (16, 4), (12, 8), (0, 2**63 - 100), (2**62, 1)])
def test_addresses_outside_or_not_aligned_are_refused(address, nbytes):
    arena = _core.Arena(budget=16, alignment=4)
    assert arena.allocate_at(address, nbytes) is None
    assert arena.used == 0
    arena.check()


def test_an_arena_without_bytes_has_no_addresses():
    assert _core.Arena(budget=3, alignment=4).allocate_at(0, 1) is None
