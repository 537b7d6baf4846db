"""What every benchmark prints and keeps: a table, with the machine, the versions and the command behind it."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

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


def publish(title: str, table: str, *, notes: str = "", packages: Sequence[str] = ()) -> None:
    """Print a result and keep it as a dated file, named after the script, with the versions of what it uses."""
    script = Path(sys.argv[0])
    command = " ".join(["python", f"benchmarks/{script.name}", *sys.argv[1:]])
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    machine = f"{_processor()}, Python {platform.python_version()}, one thread"
    machine += "".join(f", {package} {importlib.metadata.version(package)}" for package in packages)
    text = f"# {title}\n\n{today}, {machine}. `{command}`\n\n{table}\n"
    if notes:
        text += f"\n{notes}\n"
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{script.stem}.{today}.md").write_text(text)


def _processor() -> str:
    try:
        text = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("Model name")]
    return names[0] if names else platform.machine()
