"""Ray Train: each worker opens its own budget in the training function."""

import ray.train
import ray.train.torch
import torch
from torch import nn

import remint


def train(budget: int | str) -> tuple[list[float], remint.Run]:
    """Train three steps; return the losses and the run of this worker."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(8)))
    model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    with remint.budget(budget) as run:
        for step in range(3):
            seed = 10 * step + ray.train.get_context().get_world_rank()
            x = torch.randn(512, 64, generator=torch.Generator().manual_seed(seed))
            optimizer.zero_grad()
            loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, run.finished()


def work() -> None:
    """Train on this worker in much memory and in little."""
    losses, free = train("1GiB")
    again, run = train(free.peak_bytes * 60 // 100)
    assert losses == again
    assert run.num_rematerializations > 0
    print(run, flush=True)


if __name__ == "__main__":
    scaling = ray.train.ScalingConfig(num_workers=2)
    # An error of a worker is an error here.
    ray.train.torch.TorchTrainer(work, scaling_config=scaling).fit()
    print("on both workers, the same bits: True")
