"""accelerate on two ranks: each opens its own budget. `accelerate launch` starts ranks of a script in the same way."""

import torch
from accelerate import Accelerator, debug_launcher
from torch import nn

import remint


def train(budget: int | str) -> tuple[list[float], remint.Run]:
    """Train three steps; return the losses and the run of this rank."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(8)))
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(3072, 64)), 512)
    model, optimizer, batches = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), data)
    losses = []
    with remint.budget(budget) as run:
        for (x,) in batches:
            loss = (model(x) - x).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses, run.finished()


def work() -> None:
    """Train on this rank in much memory and in little."""
    losses, free = train("1GiB")
    again, run = train(free.peak_bytes * 60 // 100)
    print(f"{run}\nlosses {losses} the same bits: {losses == again}", flush=True)
    assert losses == again
    assert run.num_rematerializations > 0


if __name__ == "__main__":
    debug_launcher(work, num_processes=2)
