"""What every benchmark prints and keeps: a table, with the machine, the versions and the command behind it."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

FULL = bool(os.environ.get("FULL"))
"""FULL=1 runs every budget, trace and size; without it, a part that takes seconds to a few minutes."""

RESULTS = Path(__file__).parent / "results"


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table that also reads well as plain text."""
    cells = [list(headings), *map(list, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def publish(
    title: str, table: str, *, notes: str = "", figure: Any = None, name: str = "", packages: Sequence[str] = ()
) -> None:
    """Print a result and keep it as a dated file, with the versions of the packages that it uses.

    It is named after the script if it has no name of its own; a figure (of matplotlib) is kept beside it.
    """
    script = Path(sys.argv[0])
    command = " ".join([*(["FULL=1"] if FULL else []), "python", f"benchmarks/{script.name}", *sys.argv[1:]])
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    versions = f"remint {metadata.version('remint')}, Python {platform.python_version()}"
    if "torch" in sys.modules:
        versions += f", torch {metadata.version('torch')}"
    versions += "".join(f", {package} {metadata.version(package)}" for package in packages)
    # Others at work make times longer and noisier: a reader must know.
    machine = f"{_processor()}, {os.cpu_count()} cores with a load of {os.getloadavg()[1]:.1f}, {versions}, one thread"
    text = f"# {title}\n\n{today}, {machine}. `{command}`\n\n{table}\n"
    if notes:
        text += f"\n{notes}\n"
    print(text)
    RESULTS.mkdir(exist_ok=True)
    name = name or script.stem
    if figure is not None:
        picture = f"{name}.{today}.svg"
        figure.savefig(RESULTS / picture)
        text += f"\n![{title}]({picture})\n"
    (RESULTS / f"{name}.{today}.md").write_text(text)


def _processor() -> str:
    try:
        text = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("Model name")]
    return names[0] if names else platform.machine()
