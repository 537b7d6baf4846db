"""How close planned addresses come to the byte peak, and how long they take to find."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np

from remint import _core
from report import markdown, publish

ALIGNMENT = 512
MOVES = 200_000

Block = tuple[int, int, int]  # bytes, born, dies


class Step:
    """Requests and deaths in order."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.live: dict[int, int] = {}

    def make(self, nbytes: int) -> int:
        index = len(self.blocks)
        self.blocks.append((max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT, index, 0))
        self.live[index] = index
        return index

    def drop(self, *indices: int) -> None:
        for index in indices:
            nbytes, born, _ = self.blocks[index]
            self.blocks[index] = (nbytes, born, len(self.blocks))
            del self.live[index]

    def finish(self) -> list[Block]:
        self.drop(*list(self.live))
        return self.blocks


def gpt(n: int) -> list[Block]:
    """Layers of equal width; the weights' gradients survive; some activations are dropped and made again."""
    step = Step()
    width, rng = 1 << 20, random.Random(n)
    layers = max(1, n // 26)
    saved = []
    for _ in range(layers):
        kept = [step.make(width * k) for k in (1, 3, 1)]
        scores = step.make(width * 2)
        kept += [step.make(width * 2), step.make(width)]
        step.drop(scores)
        kept += [step.make(k) for k in (width // 64, width * 4, width * 4, width)]
        if rng.random() < 0.6:  # evicted: only the last stays
            step.drop(*kept[:-1])
            kept = kept[-1:]
        saved.append(kept)
    gradient = step.make(width)
    for kept in reversed(saved):
        kept = kept + ([step.make(width * k) for k in (1, 3, 2, 4, 4)] if len(kept) == 1 else [])
        for k in (4, 4, 1, 2, 3, 1):
            after = step.make(width * k)
            if k in (4, 3):
                step.make(width // 2 * k)  # a weight's gradient
            step.drop(gradient, kept.pop())
            gradient = after
        step.drop(*kept)
    return step.finish()


def unet(n: int) -> list[Block]:
    """Sizes halve on the way down; skip connections live until the way up; scratch in between."""
    step = Step()
    depth, rng = 5, random.Random(n)
    per_level = max(1, n // (depth * 18))
    saved: list[list[int]] = []

    def convolution(size: int) -> list[int]:
        scratch = step.make(rng.randrange(size // 4, 3 * size))
        out = step.make(size)
        step.drop(scratch)
        return [out, step.make(size // 128), step.make(size)]

    sizes = [(1 << 24) * 3 // (3 * 2**level) for level in range(depth)]
    path = [size for size in sizes for _ in range(per_level)]
    for size in path + path[::-1]:
        saved.append(convolution(size))
        if rng.random() < 0.5:
            step.drop(saved[-1].pop())
    gradient = step.make(sizes[0])
    for size, kept in zip((path + path[::-1])[::-1], saved[::-1], strict=True):
        if len(kept) == 2:
            kept.append(step.make(size))
        for _ in range(2):
            scratch = step.make(rng.randrange(size // 4, 3 * size))
            after = step.make(size)
            step.make(4096 * rng.randrange(1, 64))  # a weight's gradient
            step.drop(scratch, gradient)
            gradient = after
        step.drop(*kept)
    return step.finish()


def row(name: str, make: Callable[[int], list[Block]], n: int) -> list[str]:
    blocks = make(n)
    nbytes, born, dies = (np.array(column) for column in zip(*blocks, strict=True))
    columns = {"nbytes": nbytes, "born": born, "dies": dies}
    peak = _core.byte_peak(**columns)
    cells = [name, f"{len(blocks):,}"]
    for moves in (0, MOVES):
        started = time.process_time()
        _, top, _, used, _ = _core.place(
            **columns, addresses=np.full(len(blocks), -1), limit=peak, max_moves=moves, seed=0
        )
        cells += [f"{time.process_time() - started:.4f} s", f"{100 * (top / peak - 1):.2f}%"]
    return [*cells, f"{used:,}"]


def main() -> None:
    sizes = (100, 1_000, 10_000, 100_000)
    rows = [row(name, make, n) for name, make in (("GPT", gpt), ("U-Net", unet)) for n in sizes]
    heads = ["lifetimes", "blocks", "first fit", "over the peak", "with search", "over the peak", "moves"]
    notes = f"CPU seconds. The limit is the byte peak, which no placement can beat; at most {MOVES:,} moves."
    publish("Planned addresses", markdown(heads, rows), notes=notes)


if __name__ == "__main__":
    main()
