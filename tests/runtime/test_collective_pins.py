"""The tensors of a collective stay where they are until its Work has ended, and are ordinary again after it.

Rank 1 joins a collective only when rank 0 has looked at its tensors, so that rank 0 looks at a collective in flight.
"""

import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import remint
from tests.support.ranks import SIDE, values

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")


def _all_gather(tensor):
    outputs = [torch.empty_like(tensor) for _ in range(2)]
    return dist.all_gather(outputs, tensor, async_op=True), outputs


def _all_to_all(tensor):
    output = torch.empty_like(tensor)
    return dist.all_to_all_single(output, tensor, async_op=True), [output]


def _send_and_receive(tensor):
    output, peer = torch.empty_like(tensor), 1 - dist.get_rank()
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, peer), dist.P2POp(dist.irecv, output, peer)])
    return works, [output]


def _functional(tensor):
    output = functional.all_gather_tensor(tensor, 0, dist.group.WORLD)
    return output, [output]


STARTS = {
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "send and receive": _send_and_receive,
    "functional": _functional,
}


def _wait(work):
    if isinstance(work, torch.Tensor):
        functional.wait_tensor(work)
        return
    for each in work if isinstance(work, list) else [work]:
        each.wait()


def reads_end(rank, name, key):
    store = dist.distributed_c10d._get_default_store()
    source = values(rank)[0]
    with remint.budget("4MiB", check=True):
        read = source * 1
        assert remint.evict(read)
        if rank == 1:
            store.wait([key])
        work, outputs = STARTS[name](read)
        if rank == 0:
            assert not remint.evict(read), "in flight"
            assert not any(remint.evict(output) for output in outputs), "in flight"
            store.set(key, "looked")
        _wait(work)
        torch.ones(SIDE, SIDE).add_(1)  # the next op
        assert remint.evict(read), "the collective has ended"
        assert torch.equal(read, source)
        del work
        # Its results cannot be recomputed, but they do not stay where they are: an op that overwrites one is its
        # recipe from then on.
        outputs = [torch.zeros_like(output) if isinstance(output, functional.AsyncCollectiveTensor) else output
                   for output in outputs]  # fmt: skip
        for output in outputs:
            output.fill_(3)
            assert remint.evict(output)
            assert torch.equal(output, torch.full_like(output, 3))


@pytest.mark.parametrize("name", STARTS)
def test_tensors_are_ordinary_after_a_collective(ranks, name):
    ranks.run(reads_end, name=name, key=f"reads {name} {time.monotonic_ns()}")


def results_move(rank):
    big = values(rank, rows=512)[0]  # 128 KiB
    expected = big.clone()
    dist.all_reduce(expected)
    moved = 0
    # Four blocks fill the arena. Of these three pairs at least one is not of neighbours: without it the free bytes are
    # in two places, and a tensor of that size fits only if a result moves.
    for other in (1, 2, 3):
        with remint.budget("512KiB", check=True) as run:
            tensors = [big * 1 for _ in range(4)]
            for tensor in tensors:
                dist.all_reduce(tensor)
            tensors = [tensor for k, tensor in enumerate(tensors) if k not in (0, other)]
            del tensor
            large = torch.full((1024, SIDE), 1.0).add_(1)
            assert large.min() == large.max() == 2
            assert all(torch.equal(tensor, expected) for tensor in tensors)
            del large
        moved += run.moved_bytes
    assert moved > 0


def test_results_of_collectives_can_move(ranks):
    ranks.run(results_move)


def time_apart(rank):
    with remint.budget("4MiB") as run:
        t = values(rank)[0] * 1
        if rank == 1:
            time.sleep(0.5)
        dist.all_reduce(t)
        work = dist.all_reduce(t, async_op=True)
        if rank == 0:
            time.sleep(0.5)
        work.wait()
    assert run.computed_seconds < 0.3
    assert run.collective_seconds > (0.3 if rank == 0 else 0)
    assert run.summary()["collective_seconds"] == run.collective_seconds
    assert "collectives" in str(run)


def test_time_in_collectives_is_counted_apart(ranks):
    ranks.run(time_apart)


def _op():
    if not hasattr(_op, "op"):

        @torch.library.custom_op("remint_ranks::summed", mutates_args=())
        def summed(x: torch.Tensor) -> torch.Tensor:
            y = x.clone()
            dist.all_reduce(y)
            return y

        _op.op = summed
    return _op.op


def cost_without_waiting(rank):
    with remint.budget("4MiB") as run:
        t = values(rank)[0] * 1
        if rank == 1:
            time.sleep(0.5)
        _op()(t)
    assert run.computed_seconds < 0.3
    if rank == 0:
        assert run.collective_seconds > 0.3


def test_the_cost_of_an_op_leaves_out_waiting_for_ranks(ranks):
    ranks.run(cost_without_waiting)
