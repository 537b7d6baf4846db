"""Two networks trained in every way there is to save memory, in one table; then a report. Run by `make demo`.

Each row is a process of its own (measure.py) with one thread; the CPU time of the fastest of five steps counts, so that
a busy machine changes little.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import remint
from remint.report import write_html
from remint.units import format_bytes

HERE = Path(__file__).resolve().parent
NAMES = {"gpt": "GPT", "unet": "U-Net"}
PART = 0.6  # of the plain step's peak: the memory that remint gets
# torch's budget is a fraction of what is saved: tried from the top until the peak is low enough.
FRACTIONS = (0.5, 0.3)

Row = dict[str, Any]


def measure(model: str, way: str, *options: object) -> Row:
    """Run measure.py; a row that fails says why."""
    command = [sys.executable, str(HERE / "measure.py"), model, way, *map(str, options)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["nothing was said"]
        return {"status": "failed", "why": said[-1]}
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def torch_budget(model: str, target: int, options: list[object]) -> tuple[str, Row]:
    """Return torch's best: the first fraction that gets below the target, or else the lowest peak."""
    rows = []
    for fraction in FRACTIONS:
        row = measure(model, "torch-budget", "--fraction", fraction, *options)
        rows.append((f"torch, activation_memory_budget {fraction}", row))
        if row.get("peak", target + 1) <= target:
            return rows[-1]
    return min(rows, key=lambda row: row[1].get("peak", float("inf")))


def rows_of(model: str, folder: Path, steps: int, advance: Any) -> tuple[list[tuple[str, Row]], int]:
    """Measure one network in every way; return the rows, and remint's budget."""
    options: list[object] = ["--steps", steps]
    plain = measure(model, "plain", *options)
    if plain["status"] != "ok":
        raise SystemExit(f"the plain step failed: {plain['why']}")
    advance()
    target = int(PART * plain["peak"])
    blocks = measure(model, "torch-blocks", *options)
    advance()
    rows = [("plain", plain), ("torch.utils.checkpoint, every block", blocks), torch_budget(model, target, options)]
    advance()
    for name, budget in (("", target), (", at checkpoint's peak", blocks.get("peak", target))):
        run = folder / f"{NAMES[model]}{name}.json"
        rows.append((f"remint online{name}", measure(model, "online", "--budget", budget, "--run", run, *options)))
        advance()
    if hasattr(remint, "compile"):
        rows.append(("remint planned", measure(model, "planned", "--budget", target, *options)))
    advance()
    return rows, target


def show(console: Console, model: str, rows: list[tuple[str, Row]], target: int) -> None:
    """Print one table."""
    plain = rows[0][1]
    title = f"{NAMES[model]}: one training step; remint's budget is {format_bytes(target)}"
    table = Table("", title=title, title_justify="left")
    for heading in ("peak", "step", "slowdown", "same bits"):
        table.add_column(heading, justify="right")
    for name, row in rows:
        if row["status"] != "ok":
            table.add_row(name, f"[red]{row['status']}[/red]", "", "", "")
            continue
        same = row["digest"] == plain["digest"]
        over = row["peak"] > target and row is not plain
        table.add_row(
            name,
            f"{'[yellow]' if over else ''}{format_bytes(row['peak'])}",
            f"{row['seconds'] * 1e3:.0f} ms",
            f"{row['seconds'] / plain['seconds']:.2f}x",
            "yes" if same else "[yellow]no[/yellow]",
        )
    console.print(table)
    for name, row in rows:
        if row["status"] != "ok":
            console.print(f"[dim]{name}: {row['why']}[/dim]", highlight=False)


def report(path: Path, folder: Path) -> None:
    """Write the page: remint's runs, and the U-Net's step recorded, then simulated with its arena, and planned."""
    sys.path.insert(0, str(HERE))
    from models import make

    model, batch = make("unet")
    model(*batch).backward()
    with remint.record(source_lines=True) as recording:
        model(*batch).backward()
    budget = int(PART * recording.trace.peak_bytes)
    items: dict[str, Any] = {
        "U-Net, recorded": remint.simulate(
            recording.trace, budget=budget, policy="coop", memory="arena", blocks=True, max_slowdown=math.inf
        ),
        "U-Net, planned": remint.plan(remint.Graph.from_trace(recording.trace), budget, time_limit=5),
    }
    items |= {f"{file.stem}, remint online": remint.Run.load(file) for file in sorted(folder.glob("*.json"))}
    write_html(path, items, title="remint demo")


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
    with tempfile.TemporaryDirectory() as name, Progress(*columns, console=console) as bars:
        folder = Path(name)
        tasks = {model: bars.add_task(NAMES[model], total=6, start=False) for model in models}
        last = bars.add_task("report", total=1, start=False)
        for model in models:
            bars.start_task(tasks[model])
            rows, target = rows_of(model, folder, args.steps, lambda task=tasks[model]: bars.advance(task))
            show(bars.console, model, rows, target)
        bars.start_task(last)
        args.output.parent.mkdir(parents=True, exist_ok=True)
        report(args.output, folder)
        bars.advance(last)
    console.print(f"Report: {args.output.resolve()}", soft_wrap=True)


if __name__ == "__main__":
    main()
