"""Two networks trained in every way there is to save memory, in one table; then a report. Run by `make demo`.

Each network has a process of its own (measure.py) with one thread; the CPU time of the fastest of five steps counts,
and the slowdown is against plain steps that were taken in turns with them, so that a busy machine changes little.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import remint
from remint.report import write_html
from remint.units import format_bytes

HERE = Path(__file__).resolve().parent
NAMES = {"gpt": "GPT (6 layers)", "unet": "U-Net"}
PART = 0.6  # of the plain step's peak: the memory that remint gets
# torch's budget is a fraction of what is saved: tried from the top until the peak is low enough.
FRACTIONS = (0.5, 0.3)
HEADINGS = ("peak", "step", "slowdown", "same bits")

Row = dict[str, Any]


class Worker:
    """Trains one network in one way after another."""

    def __init__(self, model: str, steps: int) -> None:
        self._common = {"model": model, "steps": steps}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "measure.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def measure(self, way: str, **options: object) -> Row:
        """Return what measure.py answers; a row that fails says why."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._process.poll() is None:
            self._process.stdin.write(json.dumps({"way": way, **self._common, **options}) + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            return {"status": "failed", "why": f"its process ended with exit code {self._process.wait()}"}
        row: Row = json.loads(answer)
        return row

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def torch_budget(worker: Worker, target: int) -> tuple[str, Row]:
    """Return torch's best: the first fraction that gets below the target, or else the lowest peak."""
    rows = []
    for fraction in FRACTIONS:
        row = worker.measure("torch-budget", fraction=fraction)
        rows.append((f"torch, activation_memory_budget {fraction}", row))
        if row.get("peak", target + 1) <= target:
            return rows[-1]
    return min(rows, key=lambda row: row[1].get("peak", float("inf")))


def rows_of(model: str, folder: Path, steps: int, advance: Callable[[], None]) -> tuple[list[tuple[str, Row]], int]:
    """Measure one network in every way; return the rows, and remint's budget."""
    worker = Worker(model, steps)
    plain = worker.measure("plain")
    if plain["status"] != "ok":
        raise SystemExit(f"the plain step failed: {plain['why']}")
    advance()
    target = int(PART * plain["peak"])
    blocks = worker.measure("torch-blocks")
    advance()
    rows = [("plain", plain), ("torch.utils.checkpoint, every block", blocks), torch_budget(worker, target)]
    advance()
    for name, budget in (("", target), (", at checkpoint's peak", blocks.get("peak", target))):
        save = str(folder / f"{NAMES[model]}, online{name}.run")
        rows.append((f"**remint online**{name}", worker.measure("online", budget=budget, save=save)))
        advance()
    save = str(folder / f"{NAMES[model]}, planned.plan")
    rows.append(("**remint planned**", worker.measure("planned", budget=target, save=save)))
    advance()
    worker.close()
    return rows, target


def cells_of(row: Row, plain: Row) -> list[str]:
    """Return a row of the table, without its name."""
    if row["status"] != "ok":
        return [row["status"], "", "", ""]
    return [
        format_bytes(row["peak"]),
        f"{row['seconds'] * 1e3:.0f} ms",
        f"{row['seconds'] / row['plain']:.2f}x",
        "yes" if row["digest"] == plain["digest"] else "no",
    ]


def show(console: Console, model: str, rows: list[tuple[str, Row]], target: int) -> None:
    """Print one table."""
    plain = rows[0][1]
    title = f"{NAMES[model]}: one training step; remint's budget is {format_bytes(target)}"
    table = Table("", title=title, title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for name, row in rows:
        cells = cells_of(row, plain)
        if row["status"] == "ok" and row["peak"] > target and row is not plain:
            cells[0] = f"[yellow]{cells[0]}[/yellow]"
        if cells[3] == "no":
            cells[3] = "[yellow]no[/yellow]"
        table.add_row(name.replace("**", ""), *cells)
    console.print(table)
    for name, row in rows:
        if row["status"] != "ok":
            console.print(f"[dim]{name.replace('**', '')}: {row['why']}[/dim]", highlight=False)


def markdown(model: str, rows: list[tuple[str, Row]]) -> str:
    """Return the same table for a document."""
    lines = [" | ".join(["| " + NAMES[model], *HEADINGS]) + " |", "|---" * 5 + "|"]
    lines += [" | ".join([f"| {name}", *cells_of(row, rows[0][1])]) + " |" for name, row in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="gpt,unet")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, default=Path("build/demo.html"))
    args = parser.parse_args()
    console = Console()
    console.width = max(console.width, 100)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    models = args.models.split(",")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    tables = []
    with tempfile.TemporaryDirectory() as name, Progress(*columns, console=console) as bars:
        folder = Path(name)
        tasks = {model: bars.add_task(NAMES[model], total=6, start=False) for model in models}
        for model in models:
            bars.start_task(tasks[model])
            rows, target = rows_of(model, folder, args.steps, lambda task=tasks[model]: bars.advance(task))
            show(bars.console, model, rows, target)
            tables.append(markdown(model, rows))
        items: dict[str, Any] = {file.stem: remint.Run.load(file) for file in sorted(folder.glob("*.run"))}
        items |= {file.stem: remint.Plan.load(file) for file in sorted(folder.glob("*.plan"))}
        # A plan stands beside the run of the same network, and each network by itself.
        networks = {name: next(network for network in NAMES.values() if name.startswith(network)) for name in items}
        write_html(args.output, dict(sorted(items.items())), title="remint demo", groups=networks)
    tables_path = args.output.with_suffix(".md")
    tables_path.write_text("\n".join(tables))
    console.print(f"Report: {args.output.resolve()}", soft_wrap=True)
    console.print(f"The tables as Markdown: {tables_path.resolve()}", soft_wrap=True)


if __name__ == "__main__":
    main()
