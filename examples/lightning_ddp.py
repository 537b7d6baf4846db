"""Lightning with `strategy="ddp"`: it starts the second process itself, and the callback opens a budget in each."""

import logging
import warnings

import lightning
import torch
from torch import nn

import remint
from remint.integrations.lightning import Budget

logging.getLogger("lightning").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


class Regression(lightning.LightningModule):
    """A deep network."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(8)))
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """Return the loss of one batch."""
        (x,) = batch
        loss = (self.net(x) - x).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters())


def train(budget: int | str) -> tuple[list[float], remint.Run]:
    """Train three steps on two ranks; return the losses and the run of this rank."""
    lightning.seed_everything(0, verbose=False)
    callback, model = Budget(budget), Regression()
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        callbacks=[callback],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(model, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(3072, 64)), 512))
    return model.losses, callback.run.finished()


losses, free = train("1GiB")
again, run = train(free.peak_bytes * 60 // 100)
print(f"{run}\nlosses {losses} the same bits: {losses == again}", flush=True)
assert losses == again
assert run.num_rematerializations > 0
