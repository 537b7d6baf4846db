"""The networks of the planning benchmarks, small enough for a step on a CPU: `make(name)` → (model, args)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, *, causal: bool, fused: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal, self.fused = heads, causal, fused

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for t in self.qkv(x).split(width, 2)
        )
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
            if self.causal:
                mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
                scores = scores.masked_fill(~mask, float("-inf"))
            y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, *, causal: bool, fused: bool, before: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads, causal=causal, fused=fused)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.before = before

    def forward(self, x):
        if self.before:
            x = x + self.attention(self.norm1(x))
            return x + self.down(F.gelu(self.up(self.norm2(x))))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Transformer(nn.Module):
    def __init__(self, layers: int, *, causal: bool, fused: bool, width: int = 256, length: int = 256) -> None:
        super().__init__()
        self.tokens = nn.Embedding(1024, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        self.layers = nn.ModuleList(Layer(width, 4, causal=causal, fused=fused, before=causal) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1024, bias=False)

    def forward(self, ids, target):
        x = self.tokens(ids) + self.places
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), target.flatten())


def conv(i: int, o: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(i, o, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(o))


class Residual(nn.Module):
    def __init__(self, i: int, o: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        if bottleneck:
            self.body = nn.Sequential(
                conv(i, o // 4, 1), nn.ReLU(), conv(o // 4, o // 4, 3, stride), nn.ReLU(), conv(o // 4, o, 1)
            )
        else:
            self.body = nn.Sequential(conv(i, o, 3, stride), nn.ReLU(), conv(o, o, 3))
        self.short = conv(i, o, 1, stride) if i != o or stride > 1 else nn.Identity()

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x))


def resnet(counts: tuple[int, ...], *, bottleneck: bool) -> nn.Sequential:
    stages: list[nn.Module] = [conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    i = 64
    for stage, count in enumerate(counts):
        o = (256 if bottleneck else 64) << stage
        for block in range(count):
            stages.append(Residual(i, o, 2 if stage and not block else 1, bottleneck=bottleneck))
            i = o
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, 100))


def vgg(counts: tuple[int, ...]) -> nn.Sequential:
    parts: list[nn.Module] = []
    i = 3
    for stage, count in enumerate(counts):
        o = min(512, 64 << stage)
        for _ in range(count):
            parts += [nn.Conv2d(i, o, 3, padding=1), nn.ReLU()]
            i = o
        parts.append(nn.MaxPool2d(2))
    return nn.Sequential(*parts, nn.Flatten(), nn.LazyLinear(512), nn.ReLU(), nn.Linear(512, 100))


def mobilenet() -> nn.Sequential:
    parts: list[nn.Module] = [conv(3, 32, 3, 2), nn.ReLU()]
    i = 32
    plan = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    for o, stride in plan:
        parts += [conv(i, i, 3, stride, i), nn.ReLU(), conv(i, o, 1), nn.ReLU()]
        i = o
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, 100))


class Dense(nn.Module):
    def __init__(self, i: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(i), nn.Conv2d(i, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x):
        y = self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))
        return torch.cat([x, y], 1)


def densenet(counts: tuple[int, ...], growth: int = 32) -> nn.Sequential:
    parts: list[nn.Module] = [conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    i = 64
    for stage, count in enumerate(counts):
        for _ in range(count):
            parts.append(Dense(i, growth))
            i += growth
        if stage + 1 < len(counts):
            parts += [nn.BatchNorm2d(i), nn.ReLU(), nn.Conv2d(i, i // 2, 1, bias=False), nn.AvgPool2d(2)]
            i //= 2
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, 100))


class UNet(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        c = width
        self.down = nn.ModuleList(
            Residual(i, o, 1, bottleneck=False) for i, o in ((3, c), (c, 2 * c), (2 * c, 4 * c), (4 * c, 4 * c))
        )
        self.up = nn.ModuleList(
            Residual(i, o, 1, bottleneck=False) for i, o in ((8 * c, 2 * c), (4 * c, c), (2 * c, c))
        )
        self.last = nn.Conv2d(c, 3, 1)

    def forward(self, x, target):
        kept = []
        for place, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if place else x)
            kept.append(x)
        for block, skip in zip(self.up, reversed(kept[:-1]), strict=True):
            x = block(torch.cat([F.interpolate(x, scale_factor=2, mode="nearest"), skip], 1))
        return F.mse_loss(self.last(x), target)


class Classifier(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x, target):
        return F.cross_entropy(self.net(x), target)


def _images(net: nn.Module, batch: int, side: int):
    x = torch.randn(batch, 3, side, side)
    with torch.no_grad():
        net(x[:1].expand(2, -1, -1, -1))  # lazy layers find their sizes
    return Classifier(net), (x, torch.randint(0, 100, (batch,)))


def _text(net: nn.Module, batch: int):
    ids = torch.randint(0, 1024, (batch, 256))
    return net, (ids, ids.roll(-1, 1))


def _unet():
    x = torch.randn(4, 3, 128, 128)
    return UNet(), (x, torch.randn_like(x))


MODELS: dict[str, Callable] = {
    "gpt4": lambda: _text(Transformer(4, causal=True, fused=True), 8),
    "gpt12": lambda: _text(Transformer(12, causal=True, fused=True), 4),
    "gpt48": lambda: _text(Transformer(48, causal=True, fused=True), 2),
    "gpt4-eager": lambda: _text(Transformer(4, causal=True, fused=False), 8),
    "gpt12-eager": lambda: _text(Transformer(12, causal=True, fused=False), 4),
    "gpt48-eager": lambda: _text(Transformer(48, causal=True, fused=False), 2),
    "bert12": lambda: _text(Transformer(12, causal=False, fused=False), 4),
    "unet": _unet,
    "resnet18": lambda: _images(resnet((2, 2, 2, 2), bottleneck=False), 16, 96),
    "resnet50": lambda: _images(resnet((3, 4, 6, 3), bottleneck=True), 8, 96),
    "vgg16": lambda: _images(vgg((2, 2, 3, 3, 3)), 8, 96),
    "vgg19": lambda: _images(vgg((2, 2, 4, 4, 4)), 8, 96),
    "mobilenet": lambda: _images(mobilenet(), 16, 96),
    "densenet121": lambda: _images(densenet((6, 12, 24, 16)), 8, 96),
}


def make(name: str):
    """Return the model and the arguments of its forward call."""
    torch.manual_seed(0)
    return MODELS[name]()
