"""Lightning with a callback: a LightningModule and a Trainer, whose training is inside the budget."""

import logging
import warnings

import lightning
import torch
from torch import nn

import remint
from remint.integrations.lightning import Budget

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


class Classifier(lightning.LightningModule):
    """A small convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(6)]
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *blocks, nn.Flatten(), nn.LazyLinear(10))
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """Return the loss of one batch."""
        x, target = batch
        loss = nn.functional.cross_entropy(self.net(x), target)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters())


def train(budget: int | str) -> tuple[list[float], remint.Run]:
    """Train three steps; return the losses and the run."""
    lightning.seed_everything(0, verbose=False)
    model = Classifier()
    model.net(torch.zeros(2, 3, 16, 16))
    data = torch.utils.data.TensorDataset(torch.randn(96, 3, 16, 16), torch.randint(10, (96,)))
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    callback = Budget(budget)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", enable_checkpointing=False, callbacks=[callback], **quiet
    )
    trainer.fit(model, torch.utils.data.DataLoader(data, 32))
    return model.losses, callback.run.finished()


losses, free = train("1GiB")
again, run = train(free.peak_bytes * 70 // 100)
print(run)
print("losses", losses, "the same bits:", losses == again)
assert losses == again
