"""What the runtime and its peers are measured on: a GPT and a U-Net, GPT-2 and a ResNet.

`make(name)` gives a module and its inputs; the module returns the loss. With `regions=True` every block is wrapped in
`torch.utils.checkpoint`, as its users do by hand.
"""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """One layer of a GPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.project(y)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, *, layers: int, width: int, length: int, vocabulary: int, regions: bool) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.regions = regions

    def forward(self, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.regions else block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), target.flatten())


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        same = inputs == outputs and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))) + self.skip(x))


class UNet(nn.Module):
    def __init__(self, width: int, *, regions: bool) -> None:
        super().__init__()
        w = width
        self.down = nn.ModuleList([Residual(3, w), Residual(w, 2 * w), Residual(2 * w, 4 * w)])
        self.middle = Residual(4 * w, 4 * w)
        self.up = nn.ModuleList([Residual(8 * w, 2 * w), Residual(4 * w, w), Residual(2 * w, w)])
        self.head, self.regions = nn.Conv2d(w, 3, 1), regions

    def run(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=False) if self.regions else block(x)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        kept = []
        for block in self.down:
            kept.append(self.run(block, x))
            x = F.max_pool2d(kept[-1], 2)
        x = self.run(self.middle, x)
        for block in self.up:
            x = self.run(block, torch.cat([F.interpolate(x, scale_factor=2), kept.pop()], 1))
        return F.mse_loss(self.head(x), target)


class ResNet(nn.Module):
    def __init__(self, *, regions: bool) -> None:
        super().__init__()
        widths = [(16, 16, 1)] * 3 + [(16, 32, 2)] + [(32, 32, 1)] * 2 + [(32, 64, 2)] + [(64, 64, 1)] * 2
        self.first, self.head = nn.Conv2d(3, 16, 3, 1, 1), nn.Linear(64, 10)
        self.blocks = nn.ModuleList(Residual(*arguments) for arguments in widths)
        self.regions = regions

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.regions else block(x)
        return F.cross_entropy(self.head(x.mean((2, 3))), target)


class LanguageModel(nn.Module):
    """GPT-2 of `transformers`, with random weights."""

    def __init__(self, *, regions: bool) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(vocab_size=1024, n_positions=256, n_embd=256, n_layer=6, n_head=4, use_cache=False)
        self.model = GPT2LMHeadModel(config)
        if regions:
            self.model.gradient_checkpointing_enable()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, labels=ids).loss


class LSTMCells(nn.Module):
    """An LSTM, cell by cell."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(width, width), nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, memory = x.new_zeros(2, x.shape[1], x.shape[2])
        outputs = []
        for step in x:
            hidden, memory = self.cell(step, (hidden, memory))
            outputs.append(self.head(hidden))
        return torch.stack(outputs).square().mean()


class TreeLSTM(nn.Module):
    """A binary tree, fixed by its seed, with a batch of values at each leaf."""

    def __init__(self, width: int, leaves: int) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * width, 5 * width)
        draw = random.Random(0)
        # Which two of the roots so far are joined next.
        self.joins = [sorted(draw.sample(range(roots), 2)) for roots in range(leaves, 1, -1)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        roots = [(torch.tanh(leaf), leaf) for leaf in x]
        for low, high in self.joins:
            (right, right_memory), (left, left_memory) = roots.pop(high), roots.pop(low)
            i, f, g, o, u = self.gates(torch.cat([left, right], 1)).chunk(5, 1)
            memory = i.sigmoid() * u.tanh() + f.sigmoid() * left_memory + g.sigmoid() * right_memory
            roots.append((o.sigmoid() * memory.tanh(), memory))
        return roots[0][0].square().mean()


class Mamba(nn.Module):
    """Mamba of `transformers` on its slow path: one small op after the other along the sequence."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import MambaConfig, MambaForCausalLM

        config = MambaConfig(vocab_size=256, hidden_size=64, num_hidden_layers=2, state_size=8, use_cache=False)
        self.model = MambaForCausalLM(config)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, labels=ids).loss


def make(name: str, *, regions: bool = False) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return the module called `name`, with the same weights every time, and its inputs."""
    torch.manual_seed(0)
    match name:
        case "gpt" | "gpt12":
            layers = 6 if name == "gpt" else 12
            net: nn.Module = GPT(layers=layers, width=256, length=256, vocabulary=1024, regions=regions)
            ids = torch.randint(0, 1024, (8, 256))
            return net, (ids, ids.roll(-1, 1))
        case "unet":
            return UNet(16, regions=regions), (torch.randn(4, 3, 128, 128), torch.randn(4, 3, 128, 128))
        case "resnet":
            return ResNet(regions=regions), (torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,)))
        case "lstm":
            return LSTMCells(128), (torch.randn(64, 64, 128),)
        case "tree":
            return TreeLSTM(64, 48), (torch.randn(48, 64, 64),)
        case "mamba":
            return Mamba().train(), (torch.randint(0, 256, (2, 64)),)
        case "gpt2":
            return LanguageModel(regions=regions).train(), (torch.randint(0, 1024, (4, 256)),)
    raise ValueError(f"no workload is called {name!r}")
