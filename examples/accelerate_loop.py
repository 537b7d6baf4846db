"""A loop of Hugging Face's accelerate, with gradient accumulation: the budget goes around it."""

import torch
from accelerate import Accelerator
from torch import nn

import remint
from remint.integrations.loggers import log_step


def train(budget: int | str) -> tuple[list[float], remint.Run]:
    """Train three steps of two batches each; return the losses and the run."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    layers = [nn.Sequential(nn.Linear(128, 128), nn.LayerNorm(128), nn.GELU(), nn.Dropout(0.1)) for _ in range(8)]
    model = nn.Sequential(*layers, nn.Linear(128, 10))
    data = torch.utils.data.TensorDataset(torch.randn(3072, 128), torch.randint(10, (3072,)))
    model, optimizer, batches = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=1e-3), torch.utils.data.DataLoader(data, 512)
    )
    losses = []
    with remint.budget(budget) as run:
        for number, (x, target) in enumerate(batches):
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), target)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            log_step(run, accelerator, number)  # to the trackers of `accelerator.init_trackers`
    return losses, run.finished()


losses, free = train("1GiB")
again, run = train(free.peak_bytes * 60 // 100)
print(run)
print("losses", losses, "the same bits:", losses == again)
assert losses == again
