"""Functional collectives, DTensor, and ops of users that hide a collective: none runs twice, on any rank."""

import pytest
import torch
import torch.distributed as dist

import remint
from tests.support.ranks import values

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")


def functional_calls():
    import torch.distributed._functional_collectives as functional

    def halves(x):
        return [x.shape[0] // 2] * 2

    group = dist.group.WORLD
    return {
        "all_reduce": lambda x: functional.all_reduce(x, "sum", group),
        "all_gather_tensor": lambda x: functional.all_gather_tensor(x, 0, group),
        "all_gather_tensor of columns": lambda x: functional.all_gather_tensor(x, 1, group),
        "reduce_scatter_tensor": lambda x: functional.reduce_scatter_tensor(x, "sum", 0, group),
        "all_to_all_single": lambda x: functional.all_to_all_single(x, halves(x), halves(x), group),
        "broadcast": lambda x: functional.broadcast(x, 0, group),
        "all_reduce_coalesced": lambda x: torch.cat(functional.all_reduce_coalesced([x, x + 1], "sum", group)),
        "all_gather_tensor_autograd": lambda x: functional.all_gather_tensor_autograd(x, 0, group),
        "reduce_scatter_tensor_autograd": lambda x: functional.reduce_scatter_tensor_autograd(x, "sum", 0, group),
        "all_to_all_single_autograd": lambda x: functional.all_to_all_single_autograd(x, halves(x), halves(x), group),
        "wait_tensor": lambda x: torch.ops._c10d_functional.wait_tensor(
            torch.ops._c10d_functional.all_reduce(x, "sum", group.group_name)
        ),
        "all_reduce_": lambda x: torch.ops._c10d_functional.wait_tensor(
            torch.ops._c10d_functional.all_reduce_(x.clone(), "sum", group.group_name)
        ),
        "shard_dim_alltoall": lambda x: torch.ops._dtensor.shard_dim_alltoall(x, 0, 1, group.group_name),
    }


FUNCTIONAL = (
    "all_reduce", "all_gather_tensor", "all_gather_tensor of columns", "reduce_scatter_tensor", "all_to_all_single",
    "broadcast", "all_reduce_coalesced", "all_gather_tensor_autograd", "reduce_scatter_tensor_autograd",
    "all_to_all_single_autograd", "wait_tensor", "all_reduce_", "shard_dim_alltoall",
)  # fmt: skip


def one_functional(rank, name, mode):
    call = functional_calls()[name]
    with_gradient = name.endswith("_autograd")
    source = values(rank)[0]

    def program(evict):
        leaf = source.clone().requires_grad_(with_gradient)
        x = leaf * 2
        y = x + 1
        evict(x, y)
        received = call(x)
        evict(x, y)
        z = received * 3
        evict(received, z)
        again = received + z  # on rank 0 alone if only that one evicted
        evict(received, z, again)
        results = [y.detach() * 1, received.detach() * 1, z.detach() * 1, again.detach() * 1]
        if with_gradient:
            again.square().sum().backward()
            results.append(leaf.grad)
        return results

    expected = program(lambda *tensors: None)

    def evict(*tensors):
        if mode != "rank 0" or rank == 0:
            for tensor in tensors:
                remint.evict(tensor)

    with remint.budget("4MiB", chaos=mode == "chaos", check=True):
        found = program(evict)
    for k, (a, b) in enumerate(zip(expected, found, strict=True)):
        assert torch.equal(a, b), k
    dist.barrier()  # hangs if one rank ran a collective more than the other


@pytest.mark.parametrize("mode", ["chaos", "both", "rank 0"])
@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functional_collectives(ranks, name, mode):
    ranks.run(one_functional, name=name, mode=mode)


_calls = []


def _register():
    """A user's op that hides a collective: nothing in its schema says so."""

    @torch.library.custom_op("remint_ranks::hidden", mutates_args=())
    def hidden(x: torch.Tensor) -> torch.Tensor:
        _calls.append(x.shape)
        out = x.clone()
        dist.all_reduce(out)
        return out

    @torch.library.custom_op("remint_ranks::hidden_", mutates_args=("x",))
    def hidden_(x: torch.Tensor) -> None:
        _calls.append(x.shape)
        dist.all_reduce(x)

    @torch.library.custom_op("remint_ranks::functional", mutates_args=())
    def functional(x: torch.Tensor) -> torch.Tensor:
        from torch.distributed import _functional_collectives as collectives

        _calls.append(x.shape)
        return collectives.all_reduce(x, "sum", dist.group.WORLD).clone()

    library = torch.library.Library("remint_ranks", "FRAGMENT")
    library.define("plain(Tensor x) -> Tensor")
    library.impl("plain", lambda x: hidden._init_fn(x), "CPU")
    _register.done = (hidden, hidden_, functional, library)


def hidden_collective(rank, op, mode):
    if not hasattr(_register, "done"):
        _register()
    _calls.clear()
    source = values(rank)[0]
    total = values(0)[0] * 2 + values(1)[0] * 2
    with remint.budget("4MiB", chaos=mode == "chaos", check=True):
        x = source * 2
        if op == "hidden_":
            out = x
            before = x + 1
            remint.evict(before)
            torch.ops.remint_ranks.hidden_(x)
            assert torch.equal(before, source * 2 + 1)
        else:
            out = getattr(torch.ops.remint_ranks, op)(x)
        after = out + 1
        for _ in range(3):
            if mode != "rank 0" or rank == 0:
                remint.evict(out)
                remint.evict(after)
            assert torch.equal(out, total)
            assert torch.equal(after, total + 1)
    assert torch.equal(out, total)
    assert len(_calls) == 1
    dist.barrier()


@pytest.mark.parametrize("mode", ["both", "rank 0", "chaos"])
@pytest.mark.parametrize("op", ["hidden", "hidden_", "functional", "plain"])
def test_a_users_op_that_hides_a_collective(ranks, op, mode):
    ranks.run(hidden_collective, op=op, mode=mode)


def redistribute(rank, mode):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh = init_device_mesh("cpu", (2,))
    source = values(rank)[0]
    placements = [Shard(0), Replicate(), Shard(1), Replicate(), Shard(0), Shard(1), Shard(0)]

    def program(evict):
        leaf = source.clone().requires_grad_()
        results, kept = [], []
        for first in (Shard(0), Partial()):
            d = DTensor.from_local(leaf * 2, mesh, [first])
            for placement in placements if first != Partial() else (Replicate(), Shard(1)):
                d = (d * 2).redistribute(mesh, [placement])
                kept.append(d.to_local())
                evict(*kept)
            evict(*kept)
            d.to_local().square().sum().backward()
            results += [t.detach() + 0 for t in kept]
        return [*results, leaf.grad]

    expected = program(lambda *tensors: None)

    def evict(*tensors):
        if mode != "rank 0" or rank == 0:
            for tensor in tensors:
                remint.evict(tensor.detach())

    with remint.budget("8MiB", chaos=mode == "chaos", check=True):
        found = program(evict)
    for k, (a, b) in enumerate(zip(expected, found, strict=True)):
        assert torch.equal(a, b), k
    dist.barrier()


@pytest.mark.parametrize("mode", ["chaos", "both", "rank 0"])
def test_redistribute(ranks, mode):
    ranks.run(redistribute, mode=mode)
