"""The two networks of the demo: a small GPT and a small U-Net, whose blocks can be told how to be run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

Call = Callable[..., torch.Tensor]


def directly(block: Call, *args: torch.Tensor) -> torch.Tensor:
    """Run a block as it is."""
    return block(*args)


class Attention(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A GPT with its loss."""

    def __init__(self, run: Callable[..., torch.Tensor] = directly) -> None:
        super().__init__()
        width, words, length = 192, 512, 128
        self.run = run
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(Attention(width, 4) for _ in range(6))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        x = self.words(ids) + self.places
        for block in self.blocks:
            x = self.run(block, x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class Convolutions(nn.Module):
    """Two convolutions with batch norm, and a way around them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.around = nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.around(x))


class UNet(nn.Module):
    """A U-Net with its loss."""

    def __init__(self, run: Callable[..., torch.Tensor] = directly) -> None:
        super().__init__()
        width = 12
        self.run = run
        sizes = [(3, 1), (1, 2), (2, 4), (4, 4), (8, 2), (4, 1), (2, 1)]
        self.blocks = nn.ModuleList(
            Convolutions(a if k == 0 else a * width, b * width) for k, (a, b) in enumerate(sizes)
        )
        self.head = nn.Conv2d(width, 3, 1)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        down1, down2, down3, middle, up3, up2, up1 = self.blocks
        a = self.run(down1, x)
        b = self.run(down2, F.max_pool2d(a, 2))
        c = self.run(down3, F.max_pool2d(b, 2))
        y = self.run(middle, F.max_pool2d(c, 2))
        for block, beside in ((up3, c), (up2, b), (up1, a)):
            y = self.run(block, torch.cat([F.interpolate(y, scale_factor=2.0, mode="nearest"), beside], 1))
        return F.mse_loss(self.head(y), target)


def make(name: str, run: Callable[..., torch.Tensor] = directly) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a network and a batch, the same every time."""
    torch.manual_seed(0)
    model = GPT(run) if name == "gpt" else UNet(run)
    return model, make_batch(name, 8 if name == "gpt" else 4)


def make_batch(name: str, size: int) -> tuple[Any, ...]:
    """Return `size` samples for a network."""
    if name == "gpt":
        ids = torch.randint(512, (size, 129))
        return ids[:, :-1], ids[:, 1:]
    return torch.randn(size, 3, 96, 96), torch.randn(size, 3, 96, 96)
