"""How long does advice about a model take that no device holds? A Llama-style one of 80 layers, 69 billion weights.

python benchmarks/advice_large.py

Nothing is run and nothing is allocated: tensors are fake. Sizes are those of Llama 2 70B, in bfloat16, with Adam.
"""

from __future__ import annotations

import argparse
import resource
import time
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import nn

import report
from remint.advice.devices import DEVICES
from remint.advice.fake import advise_fake
from remint.units import format_bytes, format_seconds

LAYERS, WIDTH, HIDDEN, HEADS, KEYS, WORDS, LENGTH = 80, 8192, 28672, 64, 8, 32000, 4096


class Attention(nn.Module):
    """Groups of queries share their keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = (nn.Linear(WIDTH, WIDTH // HEADS * KEYS, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [part(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in (self.q, self.k, self.v)]
        y = F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention and a gated MLP, each after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """The whole model, with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        y = self.head(self.norm(self.layers(self.words(words))))
        return F.cross_entropy(y.flatten(0, 1).float(), words.flatten())


def step() -> Any:
    """Return a training step, as `remint advise --fake` takes it."""
    return Llama().to(torch.bfloat16), (torch.zeros(1, LENGTH, dtype=torch.long),)


def main() -> None:
    """Measure and publish."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    began = time.perf_counter(), time.process_time()
    advice = advise_fake(lambda: (*step(), None, None), subject="step", device=DEVICES["h100-80gb"])
    wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
    print(advice)
    row = [
        f"{LAYERS}",
        format_bytes(advice.peak_bytes),
        f"{wall:.0f} s ({cpu:.0f} s)",
        format_bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024),
        format_seconds(advice.step_seconds),
    ]
    headings = ["layers", "peak of a step", "advice took (CPU)", "memory of the process", "a step, at least"]
    report.publish("Advice about a model of 69 billion weights", report.markdown(headings, [row]))


if __name__ == "__main__":
    main()
