"""Gradient accumulation under autocast: micro-batches in bfloat16, one optimizer step for all of them."""

import torch
from torch import nn

import remint


def train(budget: int | str) -> tuple[list[float], remint.Run]:
    """Train two steps of four micro-batches each; return the losses and the run."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, norm_first=True)
    model = nn.Sequential(nn.TransformerEncoder(encoder, 3, enable_nested_tensor=False), nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    batches = [torch.randn(4, 8, 32, 64) for _ in range(2)]
    losses = []
    with remint.budget(budget) as run:
        for batch in batches:
            for micro in batch:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = nn.functional.mse_loss(model(micro), micro) / len(batch)
                loss.backward()
                losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
    return losses, run.finished()


losses, free = train("1GiB")
again, run = train(free.peak_bytes * 80 // 100)
print(run)
print("losses", [round(loss, 4) for loss in losses], "the same bits:", losses == again)
assert losses == again
