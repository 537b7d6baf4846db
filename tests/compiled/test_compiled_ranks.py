"""`remint.compile` on two ranks: DDP, whose buckets make several graphs of a step, and tensor parallel."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import remint

pytestmark = [
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo"),
    pytest.mark.slow,
]

BLOCKS, PART = 4, 0.6
# One block per bucket, also for the first one.
BUCKET_BYTES = 30 << 10


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x):
        return torch.tanh(self.down(nn.functional.gelu(self.up(x)))) + x


def _data_parallel(model):
    return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=BUCKET_BYTES / 2**20)


def _ddp(model, compiled):
    model = compiled(_data_parallel(model))
    return model, model


def _ddp_outside(model, compiled):
    inner = compiled(model)
    return _data_parallel(inner), inner


def _tensor_parallel(model, compiled):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    model = compiled(model)
    return model, model


# How it is made, and the number of graphs of a step.
ENGINES = {"DDP": (_ddp, BLOCKS), "DDP outside": (_ddp_outside, BLOCKS), "tensor parallel": (_tensor_parallel, 1)}


def train(rank, engine, compiled):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, planned = ENGINES[engine][0](nn.Sequential(*(Block() for _ in range(BLOCKS))), compiled)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # Tensor parallel ranks work on the same samples.
    seed = 0 if engine == "tensor parallel" else rank
    x = torch.randn(256, 32, generator=torch.Generator().manual_seed(seed))
    found = []
    for _ in range(3):
        loss = model(x).square().mean()
        loss.backward()
        found.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
    return found + [getattr(p, "_local_tensor", p).detach().clone() for p in model.parameters()], planned


def same_bits(rank, engine):
    dist._DEFAULT_FIRST_BUCKET_BYTES = BUCKET_BYTES
    expected, _ = train(rank, engine, lambda model: torch.compile(model, backend="aot_eager"))

    def compiled(model):
        return remint.compile(
            model, budget=f"{PART:.0%}", planner="search", time_limit=2, costs="estimate", cache=False, progress=False
        )

    found, model = train(rank, engine, compiled)
    assert all(map(torch.equal, expected, found))
    plans = model.remint_plan
    assert plans.fallback_reason is None
    assert len(plans) == ENGINES[engine][1]
    # The percentage is of the step, not of a graph.
    assert plans.peak_bytes <= PART * plans.unplanned_peak_bytes
    assert plans.overhead > 0
    dist.barrier()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_compiled_step_on_two_ranks(ranks, engine):
    ranks.run(same_bits, seconds=240, engine=engine)
