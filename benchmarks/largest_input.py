"""DTR's table 1: the largest batch that trains inside a budget, plain and with remint, and what it costs per sample.

The budget is what the plain step takes at a batch of 8 (GPT) and 4 (U-Net); weights are outside of it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import remint
from remint.units import format_bytes
from report import FULL, markdown, publish

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "demo"))
from models import make, make_batch


def main() -> None:
    torch.set_num_threads(1)
    table = []
    for name, base in (("gpt", 8), ("unet", 4)):
        model, _ = make(name)

        def step(size: int, name: str = name, model: torch.nn.Module = model) -> None:
            model.zero_grad(set_to_none=True)
            model(*make_batch(name, size)).backward()

        step(base)
        with remint.budget("16GiB") as free:
            step(base)
        sizes = range(base, 64 * base + 1, 1 if FULL else base // 2)
        found = remint.fit(step, sizes, budget=free.peak_bytes, repeats=3 if FULL else 1, progress=print)
        if found.largest == sizes[-1]:
            raise SystemExit(f"{name}: no limit up to {sizes[-1]}: look further")
        first = found.attempts[0]
        last = max((a for a in found.attempts if a.fits), key=lambda a: a.size)
        table.append(
            [
                name,
                format_bytes(free.peak_bytes),
                str(base),
                str(last.size),
                f"{last.size / base:.1f}x",
                f"{first.throughput / last.throughput:.2f}x",
                f"{last.slowdown:.2f}x",
            ]
        )
    headings = ["network", "budget", "plain", "remint", "larger", "time per sample, to plain", "slowdown of ops"]
    notes = "" if FULL else "Quick: sizes in steps of half the base size."
    publish("DTR's table 1: the largest batch inside a budget", markdown(headings, table), notes=notes)


if __name__ == "__main__":
    main()
