"""Two streams in a budget, with each wall, on the fake runtime: what one does late is right for the other.

With a hard wall, memory goes from one tensor to the next in the arena. With a soft wall, it goes back to PyTorch's
allocator, which gives it to the next request of its stream at once.
"""

import ctypes

import pytest
import torch

import remint
from tests.cuda.test_backend import FAKE, NBYTES, OTHER, WALLS, assert_bytes, numbers

pytestmark = pytest.mark.parametrize("wall", WALLS)


def late(stream: torch.cuda.Stream) -> None:
    """What the stream does from here on comes late."""
    FAKE.fake_sleep(ctypes.c_void_p(stream.cuda_stream), 30_000)


def budget_of(num_tensors: int, wall: str):
    return remint.budget(num_tensors * NBYTES, device="cuda", learn=False, wall=wall)


def test_memory_of_evicted_tensors_waits_for_readers_on_another_stream(wall):
    """x is evicted while the side stream has yet to read it."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    a, b = numbers(), numbers(OTHER)
    for _ in range(5):
        with budget_of(3, wall) as run:
            x = a.clone()
            side.wait_stream(main)
            with torch.cuda.stream(side):
                late(side)
                y = x.clone()
            remint.evict(x)
            more = [b.clone(), b.clone()]
            main.wait_stream(side)
            assert run.num_evictions > 0
        assert_bytes(y)
        assert_bytes(x)
        assert_bytes(more[0], OTHER)


def test_a_replay_on_one_stream_is_there_for_another(wall):
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    a, b = numbers(), numbers(OTHER)
    for _ in range(5):
        with budget_of(64, wall) as run:
            x = a.clone()
            side.wait_stream(main)
            remint.evict(x)
            other = b.clone()
            with torch.cuda.stream(side):
                late(side)
                y = x.clone()
            z = x.clone()
            main.wait_stream(side)
        assert run.num_rematerializations == 1
        assert_bytes(y)
        assert_bytes(z)
        assert_bytes(other, OTHER)


def test_recorded_streams_are_waited_for(wall):
    """The side stream reads x by address, as kernels of other libraries do: no op shows it."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    a, b, out = numbers(), numbers(OTHER), numbers(OTHER)
    with budget_of(2, wall):
        x = a.clone()
        side.wait_stream(main)
        late(side)
        to_device, stream = ctypes.c_int(3), ctypes.c_void_p(side.cuda_stream)
        FAKE.cudaMemcpyAsync(
            ctypes.c_void_p(out.data_ptr()), ctypes.c_void_p(x.data_ptr()), ctypes.c_size_t(NBYTES), to_device, stream
        )
        x.record_stream(side)
        del x
        more = [b.clone(), b.clone()]
        main.wait_stream(side)
        assert_bytes(out)
        assert_bytes(more[0], OTHER)
