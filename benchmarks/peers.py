"""All ways to save memory on one picture: peak against step time, for a GPT and a U-Net (the networks of the demo).

torch's activation_memory_budget at several fractions, torch.utils.checkpoint, remint online at several budgets. Each
point is a process of its own, one thread, the CPU time of its fastest step; peaks are counted alike for all ways
(examples/demo/measure.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import remint
from remint.units import format_bytes
from report import FULL, markdown, publish

MEASURE = Path(__file__).resolve().parents[1] / "examples" / "demo" / "measure.py"
COLORS = {
    "plain": "#1c2530",
    "torch-blocks": "#2e9d5b",
    "torch-budget": "#4a86e8",
    "online": "#d5322d",
    "planned": "#f39c1f",
}
NAMES = {
    "plain": "plain",
    "torch-blocks": "torch.utils.checkpoint",
    "torch-budget": "activation_memory_budget",
    "online": "remint online",
    "planned": "remint planned",
}


def measure(model: str, way: str, *options: object) -> dict[str, Any]:
    command = [sys.executable, str(MEASURE), model, way, "--steps", "5" if FULL else "3", *map(str, options)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False
    )
    if done.returncode != 0:
        return {"status": "failed"}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def points(model: str) -> list[tuple[str, str, dict[str, Any]]]:
    plain = measure(model, "plain")
    found = [("plain", "", plain), ("torch-blocks", "every block", measure(model, "torch-blocks"))]
    for fraction in (0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0) if FULL else (0.5, 0.2):
        found.append(("torch-budget", str(fraction), measure(model, "torch-budget", "--fraction", fraction)))
    for way in ["online", *(["planned"] if hasattr(remint, "compile") else [])]:
        for percent in range(90, 19, -10) if FULL else (80, 60, 40):
            budget = plain["peak"] * percent // 100
            found.append((way, f"{percent}%", measure(model, way, "--budget", budget)))
    return found


def main() -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.4), layout="constrained")
    axes = figure.subplots(1, 2)
    table = []
    for ax, model in zip(axes, ("gpt", "unet"), strict=True):
        found = points(model)
        plain = found[0][2]
        for way, option, row in found:
            name = f"{NAMES[way]} {option}".strip()
            if row["status"] != "ok":
                table.append([model, name, row["status"], "", "", ""])
                continue
            same = "yes" if row["digest"] == plain["digest"] else "no"
            slowdown = row["seconds"] / plain["seconds"]
            table.append(
                [model, name, format_bytes(row["peak"]), f"{row['seconds'] * 1e3:.0f} ms", f"{slowdown:.2f}x", same]
            )
        for way in dict.fromkeys(way for way, _, _ in found):
            rows = [row for other, _, row in found if other == way and row["status"] == "ok"]
            x, y = [row["peak"] / 2**20 for row in rows], [row["seconds"] * 1e3 for row in rows]
            ax.plot(x, y, "o-" if len(rows) > 1 else "o", color=COLORS[way], label=NAMES[way])
        ax.set_title(model)
        ax.set_xlabel("peak of the step, MiB")
        ax.set_ylabel("CPU time of the step, ms")
        ax.set_ylim(bottom=0)
    axes[0].legend()
    headings = ["network", "way", "peak", "step", "slowdown", "same bits"]
    publish("All ways to save memory: peak against time", markdown(headings, table), figure=figure)


if __name__ == "__main__":
    main()
