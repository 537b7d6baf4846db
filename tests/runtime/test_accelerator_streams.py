"""Budgets and several streams: the rules of csrc/torch/backends/stream_order.h, by programs that go wrong without them.

All programs are right by CUDA's rules: streams wait for each other where one reads what another wrote, and tensors that
another stream uses are recorded before they are dropped. In each, one stream sleeps, so that its work comes late.
"""

import random
import threading

import pytest
import torch

import remint
from remint.testing import accelerator
from tests.support.two_streams import BASE, KIB, SIZE, assert_right, late, load, numbers, streams, warm_up

pytestmark = pytest.mark.accelerator


@pytest.fixture
def device():
    name = load()
    yield name
    torch.accelerator.synchronize()


# ── Reuse of memory ──


def test_memory_that_another_stream_reads_is_reused_after_that(device):
    """x is evicted while the side stream has yet to read it. The program keeps it, so it need not record it."""
    warm_up(device)
    main, side = streams(device)
    a = numbers(device)
    with remint.budget(f"{KIB * 3}KiB", device=device, learn=False) as run:
        x = a * 2
        side.wait_stream(main)
        with side:
            late()
            y = x + 1.0
        more = [a + 5.0, a * 3]
        evicted = run.num_evictions
        main.wait_stream(side)
    assert evicted > 0
    assert_right(y, BASE * 2 + 1)
    assert_right(more[0], BASE + 5)
    assert_right(more[1], BASE * 3)


def test_memory_that_another_stream_writes_is_reused_after_that(device):
    warm_up(device)
    _, side = streams(device)
    a = numbers(device)
    with remint.budget(f"{KIB}KiB", device=device, learn=False):
        with side:
            late()
            t = a * 2
            del t
        x = a + 5.0
        assert_right(x, BASE + 5)


def test_memory_from_before_the_second_stream_came(device):
    warm_up(device)
    _, side = streams(device)
    a = numbers(device)
    with remint.budget(f"{KIB}KiB", device=device, learn=False):
        late()
        t = a * 2
        del t
        with side:
            x = a + 5.0
        assert_right(x, BASE + 5)


def test_recorded_streams_are_waited_for(device):
    """The side stream reads x by address, as kernels of other libraries do: no op shows it."""
    warm_up(device)
    main, side = streams(device)
    a = numbers(device)
    out = torch.zeros(SIZE, device=device)
    with remint.budget(f"{KIB * 2}KiB", device=device, learn=False):
        x = a * 2
        address = x.data_ptr()
        side.wait_stream(main)
        with side:
            late()
            accelerator.copy_bytes(out.data_ptr(), address, x.nbytes)
        x.record_stream(side)
        del x
        more = [a + 5.0, a * 3]
        main.wait_stream(side)
        assert_right(out, BASE * 2)
        assert_right(more[0], BASE + 5)


def test_streams_of_several_tensors_whose_memory_becomes_one(device):
    """One tensor gets the memory of two that the side stream reads by address."""
    warm_up(device)
    main, side = streams(device)
    a = numbers(device)
    outs = [torch.zeros(SIZE, device=device) for _ in range(2)]
    with remint.budget(f"{KIB * 2}KiB", device=device, learn=False):
        pair = [a * 2, a * 3]
        side.wait_stream(main)
        with side:
            late()
            for out, x in zip(outs, pair, strict=True):
                accelerator.copy_bytes(out.data_ptr(), x.data_ptr(), x.nbytes)
        for x in pair:
            x.record_stream(side)
        del x, pair
        wide = torch.cat([a, a])
        main.wait_stream(side)
        assert_right(outs[0], BASE * 2)
        assert_right(outs[1], BASE * 3)
        assert_right(wide, torch.cat([BASE, BASE]))


def test_a_reader_outside_of_the_budget(device):
    """A thread that is in no budget reads x on a stream of its own."""
    warm_up(device)
    main, side = streams(device)
    a = numbers(device)
    found = []

    def read(x):
        with side:
            late()
            found.append(x + 1.0)

    with remint.budget(f"{KIB * 2}KiB", device=device, learn=False) as run:
        x = a * 2
        side.wait_stream(main)
        thread = threading.Thread(target=read, args=(x,))
        thread.start()
        thread.join()
        more = [a + 5.0, a * 3]
        assert run.num_evictions > 0
        main.wait_stream(side)
    assert_right(found[0], BASE * 2 + 1)
    assert_right(more[0], BASE + 5)


# ── Replays ──


def test_a_tensor_recomputed_on_one_stream_is_there_for_another(device):
    """Recomputed on the side stream, read on main, which made it first and needs no order."""
    warm_up(device)
    main, side = streams(device)
    a = numbers(device)
    with remint.budget("1MiB", device=device, learn=False) as run:
        x = a * 2
        side.wait_stream(main)
        remint.evict(x)
        other = a * 3  # takes the memory that x had
        with side:
            late()
            y = x + 1.0
        z = x + 5.0
        main.wait_stream(side)
    assert run.num_rematerializations == 1
    assert_right(z, BASE * 2 + 5)
    assert_right(y, BASE * 2 + 1)
    assert_right(other, BASE * 3)


def test_a_replay_waits_for_its_inputs(device):
    """x is recomputed on the side stream from base, which was recomputed on main."""
    warm_up(device)
    main, side = streams(device)
    a = numbers(device)
    with remint.budget("1MiB", device=device, learn=False) as run:
        base = a * 2
        x = base + 1.0
        side.wait_stream(main)
        remint.evict(x)
        remint.evict(base)
        other = [a * 3, a * 3]  # take the memory
        late()
        again = base + 5.0
        with side:
            y = x + 1.0
        main.wait_stream(side)
    assert run.num_rematerializations == 2
    assert_right(y, BASE * 2 + 2)
    assert_right(again, BASE * 2 + 5)
    assert_right(other[0], BASE * 3)


def test_a_write_waits_for_replays_that_read(device):
    """A replay on the side stream reads a weight. The program writes it on main, and knows of no reader."""
    warm_up(device)
    main, side = streams(device)
    weight = numbers(device)
    with remint.budget("1MiB", device=device, learn=False) as run:
        x = weight * 2
        side.wait_stream(main)
        remint.evict(x)
        with side:
            late()
            y = x + 1.0
        remint.pin(x)
        weight.zero_()
        main.wait_stream(side)
    assert run.num_rematerializations == 1
    assert_right(y, BASE * 2 + 1)


def test_a_write_waits_for_a_replay_of_what_it_writes(device):
    warm_up(device)
    main, side = streams(device)
    a = numbers(device)
    with remint.budget("1MiB", device=device, learn=False) as run:
        x = a * 2
        side.wait_stream(main)
        remint.evict(x)
        other = a * 3
        with side:
            late()
            remint.materialize(x)
        x.mul_(2.0)
    assert run.num_rematerializations == 1
    assert_right(x, BASE * 4)
    assert_right(other, BASE * 3)


def test_memory_outside_stays_until_a_replay_has_read_it(device):
    """The program drops a weight: its memory is freed in the order of main. A replay on side has yet to read it."""
    warm_up(device)
    main, side = streams(device)
    weight = numbers(device)
    with remint.budget("1MiB", device=device, learn=False) as run:
        x = weight * 2
        side.wait_stream(main)
        remint.evict(x)
        with side:
            late()
            y = x + 1.0
        remint.pin(x)
        del weight
        for _ in range(200):
            numbers_of_host = torch.ones(1, device=device) + 1.0  # the budget looks for dropped weights at times
        main.wait_stream(side)
    assert run.num_rematerializations == 1
    assert numbers_of_host.item() == 2
    assert_right(y, BASE * 2 + 1)


def test_a_replay_into_given_memory(device):
    """x was written as an `out`: its replay allocates the memory itself. The side stream has yet to write it."""
    warm_up(device)
    _, side = streams(device)
    a = numbers(device)
    with remint.budget(f"{KIB * 2}KiB", device=device, learn=False) as run:
        x = torch.empty(SIZE, device=device)
        torch.mul(a, a, out=x)
        torch.accelerator.synchronize()
        remint.evict(x)
        with side:
            late()
            t = [a * 2, a * 3]
            del t
        remint.materialize(x)
        assert run.num_rematerializations == 1
        assert_right(x, BASE * BASE)


# ── Moves ──


def test_moves_wait_for_readers_on_other_streams(device):
    """The side stream has yet to read tensors that the program dropped, and others are moved to where they were."""
    warm_up(device)
    main, side = streams(device)
    a = numbers(device)
    with remint.budget(f"{KIB * 7}KiB", device=device, learn=False) as run:
        # Copies of the host's memory cannot be recomputed: they stay, and can only be moved.
        kept = {i: (BASE + i).to(device) for i in range(7)}
        side.wait_stream(main)
        with side:
            late()
            sums = {i: tensor.sum() for i, tensor in kept.items()}
        for i in (1, 3, 5):
            kept[i].record_stream(side)
            del kept[i]
        wide = torch.cat([a, a])  # two blocks: there are three holes of one
        main.wait_stream(side)
    assert run.moved_bytes > 0
    assert_right(wide, torch.cat([BASE, BASE]))
    for i, total in sums.items():
        assert_right(total, (BASE + i).sum())


def test_moves_wait_for_writers_on_other_streams(device):
    warm_up(device)
    main, side = streams(device)
    a = numbers(device)
    with remint.budget(f"{KIB * 7}KiB", device=device, learn=False) as run:
        kept = {i: (BASE + i).to(device) for i in range(7)}
        side.wait_stream(main)
        with side:
            late()
            for i in (2, 4):
                kept[i].mul_(2.0)
        for i in (1, 3, 5):
            del kept[i]
        wide = torch.cat([a, a])
        main.wait_stream(side)
        assert run.moved_bytes > 0
        assert_right(wide, torch.cat([BASE, BASE]))
        for i in (2, 4):
            assert_right(kept[i], (BASE + i) * 2)


def test_moved_tensors_are_there_for_other_streams(device):
    """Moved on main, read on the side stream, which the program ordered before the move."""
    warm_up(device)
    main, side = streams(device)
    a = numbers(device)
    with remint.budget(f"{KIB * 7}KiB", device=device, learn=False) as run:
        kept = {i: (BASE + i).to(device) for i in range(7)}
        side.wait_stream(main)
        for i in (1, 3, 5):
            del kept[i]
        late()
        wide = torch.cat([a, a])
        with side:
            sums = {i: tensor.sum() for i, tensor in kept.items()}
        main.wait_stream(side)
    assert run.moved_bytes > 0
    assert_right(wide, torch.cat([BASE, BASE]))
    for i, total in sums.items():
        assert_right(total, (BASE + i).sum())


def test_spilled_tensors_are_copied_when_they_have_come(device):
    """Written on the side stream, late, and moved to ordinary memory on main, to recompute x in its place."""
    warm_up(device)
    main, side = streams(device)
    a = numbers(device)
    with remint.budget(f"{KIB * 2}KiB", device=device, learn=False, overflow="spill") as run:
        kept = (BASE + 1).to(device)
        x = a * 2
        side.wait_stream(main)
        with side:
            late()
            kept.mul_(2.0)
        remint.evict(x)
        more = (BASE + 3).to(device)
        with pytest.warns(UserWarning, match="ordinary memory"):
            y = x + 1.0
        assert run.spilled_bytes > 0
        assert_right(kept, (BASE + 1) * 2)
        assert_right(more, BASE + 3)
        assert_right(y, BASE * 2 + 1)


# ── The end of a budget ──


def test_what_a_budget_leaves_behind_is_there_for_all_streams(device):
    """Recomputed on main when the budget ends; made on the side stream, and read there again."""
    warm_up(device)
    main, side = streams(device)
    a = numbers(device)
    with remint.budget("1MiB", device=device, learn=False):
        with side:
            x = a * 2
        main.wait_stream(side)
        remint.evict(x)
        late()
    with side:
        y = x + 1.0
    assert_right(y, BASE * 2 + 1)


def test_what_a_budget_leaves_behind_is_copied_when_it_has_come(device):
    """Made on the side stream, late, and copied out of the arena on main."""
    warm_up(device)
    _, side = streams(device)
    a = numbers(device)
    with remint.budget("1MiB", device=device, learn=False), side:
        late()
        x = a * 2
    assert_right(x, BASE * 2)


def test_the_arena_is_freed_when_all_streams_have_used_it(device):
    """The sum is a number, which is not in the arena: nothing makes main wait for the side stream."""
    warm_up(device)
    main, side = streams(device)
    a = numbers(device)
    with remint.budget("1MiB", device=device, learn=False):
        x = a * 2
        side.wait_stream(main)
        with side:
            late()
            total = x.sum()
        x.record_stream(side)
        del x
    assert_right(total, (BASE * 2).sum())


def test_the_arena_of_survivors_is_freed_when_recorded_streams_have_used_it(device):
    """Somebody has the address of x, so it survives in the arena. The side stream reads it after the budget."""
    warm_up(device)
    main, side = streams(device)
    a = numbers(device)
    out = torch.zeros(SIZE, device=device)
    with remint.budget("1MiB", device=device, learn=False):
        x = a * 2
        address = x.data_ptr()
    side.wait_stream(main)
    with side:
        late()
        accelerator.copy_bytes(out.data_ptr(), address, x.nbytes)
    x.record_stream(side)
    del x
    assert_right(out, BASE * 2)


# ── Random programs ──


def random_program(device: str, seed: int) -> list[torch.Tensor]:
    """Ops on two streams. A stream waits for the other one before it reads what that one made."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    both = streams(device)
    made: list[tuple[torch.Tensor, int]] = [(numbers(device) * (k + 1.0), 0) for k in range(2)]
    for _ in range(60):
        here = rng.randrange(2)
        (a, of_a), (b, of_b) = rng.choice(made[-6:]), rng.choice(made)
        if here != of_a or here != of_b:
            both[here].wait_stream(both[1 - here])
        with both[here]:
            match rng.randrange(5):
                case 0:
                    c = a + b
                case 1:
                    c = (a * 0.5).relu_()
                case 2:
                    c = torch.nn.functional.dropout(a, 0.3)
                case 3:
                    c = torch.cat([a[: SIZE // 2], b[SIZE // 2 :]])
                case _:
                    c = a.reshape(64, 64) @ b.reshape(64, 64)
                    c = (c / 1e6).reshape(-1)
        for tensor, of in ((a, of_a), (b, of_b)):
            if of != here:
                tensor.record_stream(both[here])
        made.append((c, here))
        if len(made) > 8:
            made.pop(rng.randrange(len(made) - 4))
    both[0].wait_stream(both[1])
    results = [tensor + 0 for tensor, _ in made]
    for tensor, of in made:
        if of == 1:
            tensor.record_stream(both[0])
    torch.accelerator.synchronize()
    return [result.cpu() for result in results]


@pytest.mark.parametrize("options", [{"chaos": True}, {}], ids=["chaos", "tight"])
@pytest.mark.parametrize("seed", range(12))
def test_random_programs_on_two_streams(seed, options, device):
    expected = random_program(device, seed)
    load(delay_us=800, seed=seed)
    budget = "4MiB" if options else f"{KIB * 13}KiB"
    with remint.budget(budget, device=device, check=True, **options) as run:
        found = random_program(device, seed)
    assert all(torch.equal(a, b) or (a.isnan() == b.isnan()).all() for a, b in zip(expected, found, strict=True))
    assert all(map(torch.equal, (t.nan_to_num() for t in expected), (t.nan_to_num() for t in found)))
    assert run.num_rematerializations > 0
