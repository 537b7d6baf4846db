"""Ordering rules of streams that only few programs need: replays in place, joined memory, readers outside of a budget.

As in test_accelerator_streams.py, the programs are right by CUDA's rules, and one stream is late.
"""

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


def test_a_replay_in_place_waits_for_readers(device):
    """Its input is there, recomputed on main. The side stream has yet to read it, for another replay."""
    warm_up(device)
    main, side = streams(device)
    a = numbers(device)
    with remint.budget("1MiB", device=device, learn=False) as run:
        x = a * 2
        first, second = x + 1.0, x + 5.0
        x.mul_(2.0)
        side.wait_stream(main)
        for tensor in (x, first, second):
            remint.evict(tensor)
        remint.materialize(first)
        with side:
            late()
            remint.materialize(second)
        remint.materialize(x)
        assert run.num_rematerializations == 4
        assert_right(x, BASE * 4)
        assert_right(second, BASE * 2 + 5)
        assert_right(first, BASE * 2 + 1)


def test_a_replay_in_a_copy_waits_for_its_memory(device):
    """One op wrote x and y. To recompute y it works on a copy of x, which gets memory that is yet to be read."""
    warm_up(device)
    main, side = streams(device)
    a = numbers(device)
    torch._foreach_mul_([a.clone(), a.clone()], 2.0)
    torch.accelerator.synchronize()
    with remint.budget(f"{KIB * 4}KiB", device=device, learn=False, partition=False) as run:
        x, y = a * 2, a * 3
        torch._foreach_mul_([x, y], 2.0)
        filler = a + 5.0
        t = a * 3
        side.wait_stream(main)
        with side:
            late()
            total = t.sum()
        remint.evict(t)
        remint.evict(y)
        del filler
        remint.materialize(y)
        assert run.num_rematerializations == 3
        main.wait_stream(side)
        assert_right(total, (BASE * 3).sum())
        assert_right(y, BASE * 6)
        assert_right(x, BASE * 4)


def test_memory_of_several_tensors_that_becomes_one_waits_for_their_writes(device):
    warm_up(device)
    _, side = streams(device)
    a = numbers(device)
    with remint.budget(f"{KIB * 2}KiB", device=device, learn=False):
        seen = a + 5.0  # what streams do is written down as soon as there are two of them
        del seen
        with side:
            late()
            pair = [a * 2, a * 3]
            del pair
        wide = torch.cat([a, a])
        assert_right(wide, torch.cat([BASE, BASE]))


def test_memory_of_several_tensors_that_becomes_one_waits_for_their_readers(device):
    """They are evicted while the side stream has yet to read them. The sums are numbers, outside of the arena."""
    warm_up(device)
    main, side = streams(device)
    a = numbers(device)
    with remint.budget(f"{KIB * 2}KiB", device=device, learn=False) as run:
        pair = [a * 2, a * 3]
        side.wait_stream(main)
        with side:
            late()
            sums = [x.sum() for x in pair]
        wide = torch.cat([a, a])
        assert run.num_evictions == 2
        main.wait_stream(side)
        del pair
        assert_right(wide, torch.cat([BASE, BASE]))
        assert_right(sums[0], (BASE * 2).sum())
        assert_right(sums[1], (BASE * 3).sum())


def test_a_reader_outside_of_the_budget_waits_for_a_replay(device):
    """Recomputed on main, late, and read on a stream of a thread that is in no budget."""
    warm_up(device)
    main, side = streams(device)
    a = numbers(device)
    found = []

    def read(x):
        with side:
            found.append(x + 1.0)

    with remint.budget("1MiB", device=device, learn=False) as run:
        x = a * 2
        side.wait_stream(main)
        remint.evict(x)
        other = a * 3  # takes the memory that x had
        late()
        remint.materialize(x)
        thread = threading.Thread(target=read, args=(x,))
        thread.start()
        thread.join()
        main.wait_stream(side)
    assert run.num_rematerializations == 1
    assert_right(found[0], BASE * 2 + 1)
    assert_right(other, BASE * 3)


def test_a_reader_outside_of_the_budget_is_waited_for_also_if_it_begins_late(device):
    """A thread in no budget calls an op that has x, and reads it by address some time later."""
    warm_up(device)
    main, side = streams(device)
    a = numbers(device)
    out, other = torch.zeros(SIZE, device=device), numbers(device)
    called, goes_on = threading.Event(), threading.Event()

    def kernel(x, out):
        called.set()
        assert goes_on.wait(60)
        late()
        # The method of torch.Tensor would pin x.
        accelerator.copy_bytes(out.data_ptr(), torch._C.TensorBase.data_ptr(x), x.nbytes)

    library = torch.library.Library("remint_late_reader", "DEF")
    library.define("read(Tensor x, Tensor(a!) out) -> ()")
    library.impl("read", kernel, "PrivateUse1")

    def read(x):
        with side:
            torch.ops.remint_late_reader.read(x, out)

    with remint.budget(f"{KIB * 2}KiB", device=device, learn=False) as run:
        x = a * 2
        side.wait_stream(main)
        with side:
            total = other.sum()
        thread = threading.Thread(target=read, args=(x,))
        thread.start()
        assert called.wait(60)
        other.zero_()  # main waits for what the side stream has to do so far
        goes_on.set()
        thread.join()
        more = [a + 5.0, a * 3]
        assert run.num_evictions > 0
        main.wait_stream(side)
        assert_right(out, BASE * 2)
        assert_right(total, BASE.sum())
        del more
    library._destroy()
