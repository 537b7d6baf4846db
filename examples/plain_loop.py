"""A plain training loop: the one line that changes is `with remint.budget(...)`."""

import torch
from torch import nn

import remint


def train(budget: int | str) -> tuple[list[float], remint.Run]:
    """Train three steps with each step inside the budget; return the losses and the last run."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(128, 128), nn.BatchNorm1d(128), nn.GELU(), nn.Dropout(0.1)) for _ in range(8)]
    model = nn.Sequential(*layers, nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        x, target = torch.randn(512, 128), torch.randint(10, (512,))
        with remint.budget(budget) as run:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), target)
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    return losses, run.finished()


losses, free = train("1GiB")
again, run = train(free.peak_bytes * 60 // 100)
print(run)
print("losses", losses, "the same bits:", losses == again)
assert losses == again
