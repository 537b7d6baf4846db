"""The networks of DTR's figure 2 at CPU size, one training step of each recorded with `remint.record()`.

Weights are outside of what is recorded; gradients are in it, and pinned, as in a run of `remint.budget`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import nn

import planning_models as models
import remint
from remint import Trace

Step = Callable[[], None]


def step_of(net: nn.Module, *inputs: torch.Tensor) -> Step:
    """Return a training step of a network that returns its loss."""

    def step() -> None:
        net.zero_grad(set_to_none=True)
        net(*inputs).backward()

    return step


class LSTM(nn.Module):
    """Cell by cell, as DTR's: nothing is fused over time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(width, width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        state = None
        for part in x:
            state = self.cell(part, state)
        return F.cross_entropy(self.head(state[0]), target)


class TreeLSTM(nn.Module):
    """A full binary tree, node by node; the leaves are inputs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gates, self.head = nn.Linear(2 * width, 5 * width), nn.Linear(width, 10)

    def node(self, leaves: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if len(leaves) == 1:
            return leaves[0], torch.zeros_like(leaves[0])
        (h1, c1), (h2, c2) = (self.node(half) for half in leaves.chunk(2))
        i, f1, f2, o, u = self.gates(torch.cat([h1, h2], 1)).chunk(5, 1)
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f1) * c1 + torch.sigmoid(f2) * c2
        return torch.sigmoid(o) * torch.tanh(c), c

    def forward(self, leaves: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.node(leaves)[0]), target)


def unrolled_gan(*, width: int, batch: int, unrolled: int) -> Step:
    """Return a generator's step through `unrolled` updates of its discriminator (Metz et al., 2017)."""
    generator = nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 64))
    discriminator = nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
    discriminator.append(nn.Linear(width, 1))
    noise, real = torch.randn(batch, 64), torch.randn(batch, 64)
    call = torch.func.functional_call

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor, label: float) -> torch.Tensor:
        score = call(discriminator, weights, (x,))
        return F.binary_cross_entropy_with_logits(score, torch.full_like(score, label))

    def step() -> None:
        generator.zero_grad(set_to_none=True)
        fake = generator(noise)
        weights: dict[str, torch.Tensor] = dict(discriminator.named_parameters())
        for _ in range(unrolled):
            total = loss(weights, real, 1.0) + loss(weights, fake, 0.0)
            gradients = torch.autograd.grad(total, list(weights.values()), create_graph=True)
            weights = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), gradients, strict=True)}
        loss(weights, fake, 1.0).backward(inputs=list(generator.parameters()))

    return step


def resnet32() -> nn.Module:
    """The CIFAR network of He et al.: few weights, so that activations count."""
    sizes = [(16, 16, 1)] * 5 + [(16, 32, 2)] + [(32, 32, 1)] * 4 + [(32, 64, 2)] + [(64, 64, 1)] * 4
    blocks = [models.Residual(*size, bottleneck=False) for size in sizes]
    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    return models.Classifier(nn.Sequential(models.conv(3, 16, 3), nn.ReLU(), *blocks, *ends))


def _model(name: str) -> Step:
    net, inputs = models.make(name)
    return step_of(net, *inputs)


STEPS: dict[str, Callable[[], Step]] = {
    "ResNet-32": lambda: step_of(resnet32(), torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))),
    "DenseNet-121": lambda: _model("densenet121"),
    "U-Net": lambda: _model("unet"),
    "LSTM": lambda: step_of(LSTM(256), torch.randn(40, 64, 256), torch.randint(0, 10, (64,))),
    "TreeLSTM": lambda: step_of(TreeLSTM(128), torch.randn(64, 32, 128), torch.randint(0, 10, (32,))),
    "Transformer": lambda: _model("gpt4-eager"),
    "unrolled GAN": lambda: unrolled_gan(width=256, batch=256, unrolled=5),
}


def record_steps(steps: dict[str, Callable[[], Step]]) -> dict[str, Trace]:
    """Return a step of every network, with measured costs."""
    torch.set_num_threads(1)
    traces = {}
    for name, make in steps.items():
        torch.manual_seed(0)
        step = make()
        step()  # the first is not like the others
        with remint.record() as recording:
            step()
        traces[f"{name} (recorded)"] = recording.trace
    return traces
