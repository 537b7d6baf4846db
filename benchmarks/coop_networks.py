"""The networks of Coop's comparison at CPU size: `STEPS`, for `recorded.record_steps`."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import planning_models as models
from recorded import Step, step_of


class Branches(nn.Module):
    """A block of Inception: several ways through, side by side."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        c = o // 4
        self.ways = nn.ModuleList(
            [
                nn.Sequential(models.conv(i, c, 1), nn.ReLU()),
                nn.Sequential(models.conv(i, c, 1), nn.ReLU(), models.conv(c, c, 3), nn.ReLU()),
                nn.Sequential(
                    models.conv(i, c, 1), nn.ReLU(), models.conv(c, c, 3), nn.ReLU(), models.conv(c, c, 3), nn.ReLU()
                ),
                nn.Sequential(nn.AvgPool2d(3, 1, 1), models.conv(i, c, 1), nn.ReLU()),
            ]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([way(x) for way in self.ways], 1)


def inception() -> nn.Sequential:
    parts: list[nn.Module] = [models.conv(3, 64, 3, 2), nn.ReLU()]
    for i, o, count in ((64, 128, 3), (128, 256, 4), (256, 256, 3)):
        parts += [Branches(i if place == 0 else o, o) for place in range(count)]
        parts.append(nn.MaxPool2d(2))
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))


class Windows(nn.Module):
    """A layer of Swin: attention inside of windows, which every other layer shifts."""

    def __init__(self, width: int, heads: int, *, window: int, shift: int) -> None:
        super().__init__()
        self.layer = models.Layer(width, heads, causal=False, fused=False, before=True)
        self.window, self.shift = window, shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, height, width, channels = x.shape
        w = self.window
        x = x.roll((-self.shift, -self.shift), (1, 2))
        x = x.view(batch, height // w, w, width // w, w, channels).transpose(2, 3)
        shape = x.shape
        x = self.layer(x.reshape(-1, w * w, channels)).view(shape).transpose(2, 3)
        return x.reshape(batch, height, width, channels).roll((self.shift, self.shift), (1, 2))


class Swin(nn.Module):
    """Three stages; between them, four neighbouring patches become one."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.stages = nn.ModuleList()
        self.merges = nn.ModuleList()
        for stage, count in enumerate((2, 2, 4)):
            c = width << stage
            self.stages.append(
                nn.Sequential(*(Windows(c, 3 << stage, window=4, shift=2 * (n % 2)) for n in range(count)))
            )
            self.merges.append(nn.Linear(4 * c, 2 * c) if stage < 2 else nn.Identity())
        self.head = nn.Linear(width << 2, 100)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).permute(0, 2, 3, 1)
        for place, (stage, merge) in enumerate(zip(self.stages, self.merges, strict=True)):
            x = stage(x)
            if place < 2:
                x = merge(torch.cat([x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], -1))
        return F.cross_entropy(self.head(x.mean((1, 2))), target)


class BiLSTM(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, 2, bidirectional=True)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.lstm(x)[0].mean(0)), target)


class Choice(nn.Module):
    """A block of SPOS's supernet: every step takes one of four ways, drawn anew."""

    def __init__(self, i: int, o: int, stride: int) -> None:
        super().__init__()
        self.ways = nn.ModuleList(self._way(i, o, stride, kernel) for kernel in (3, 5, 7, 9))

    @staticmethod
    def _way(i: int, o: int, stride: int, kernel: int) -> nn.Sequential:
        first = [models.conv(i, o, 1), nn.ReLU()]
        return nn.Sequential(*first, models.conv(o, o, kernel, stride, o), models.conv(o, o, 1), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ways[int(torch.randint(4, ()))](x)


def spos() -> nn.Sequential:
    parts: list[nn.Module] = [models.conv(3, 16, 3, 2), nn.ReLU()]
    i = 16
    for o, count in ((32, 4), (64, 4), (128, 8), (256, 4)):
        for place in range(count):
            parts.append(Choice(i, o, 1 if place else 2))
            i = o
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, 100))


def _images(net: nn.Module, batch: int, side: int) -> Step:
    model = net if isinstance(net, Swin) else models.Classifier(net)
    return step_of(model, torch.randn(batch, 3, side, side), torch.randint(0, 100, (batch,)))


def _text(net: nn.Module, batch: int) -> Step:
    ids = torch.randint(0, 1024, (batch, 256))
    return step_of(net, ids, ids.roll(-1, 1))


STEPS: dict[str, Callable[[], Step]] = {
    "ResNet-50": lambda: _images(models.resnet((3, 4, 6, 3), bottleneck=True), 32, 96),
    "Inception": lambda: _images(inception(), 32, 64),
    "U-Net": lambda: step_of(models.UNet(), torch.randn(4, 3, 128, 128), torch.randn(4, 3, 128, 128)),
    "BERT": lambda: _text(models.Transformer(12, causal=False, fused=False), 8),
    "Swin": lambda: _images(Swin(), 32, 64),
    "BiLSTM": lambda: step_of(BiLSTM(128), torch.randn(40, 64, 128), torch.randint(0, 10, (64,))),
    "DenseNet-121": lambda: _images(models.densenet((6, 12, 24, 16)), 32, 64),
    "SPOS": lambda: _images(spos(), 32, 64),
    "GPT": lambda: _text(models.Transformer(12, causal=True, fused=False), 8),
}
