"""`remint run` and `remint record`: an unmodified script, from before its first tensor to its end."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from remint.cli.output import EXAMPLES, add_json, check_outputs, reserve_stdout, write_json
from remint.cli.script import add_script, check_script, misplaced_options, run_script
from remint.results.verdict import verdict
from remint.units import format_bytes, format_seconds, parse_budget

if TYPE_CHECKING:
    from remint.runtime import LiveRun

_OPTIONS = [
    "--budget",
    "--stop-after",
    "--policy",
    "--overflow",
    "--offload",
    "--json",
    "--report",
    "--source-lines",
    "-v",
    "--verbose",
]

_RUN = """\
examples:
  remint run --budget 2GiB train.py --epochs 3
  remint run --budget 2GiB --report run.html -v train.py
  remint run --budget 80% train.py                    of what a step takes
  remint run --budget 1GiB --offload 8GiB train.py    with optimizer state and activations in a file
  remint run --budget 500MiB --overflow spill --json run.json -m package.train
"""
_RECORD = """\
examples:
  remint record -o step.trace train.py --epochs 1
  remint simulate step.trace --memory arena --policy coop --budget 70%,50%
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands, which import torch only when one runs."""
    run = commands.add_parser(
        "run",
        help="run a script inside a memory budget",
        description="Run an unmodified script with all its tensors in an arena of exactly the budget: those of the "
        "accelerator, or of the CPU if there is none. Prints a summary to stderr at the end, also when the script "
        "fails or is stopped, and exits with its exit code.",
        epilog=_RUN,
        **EXAMPLES,
    )
    run.add_argument(
        "--budget",
        required=True,
        help='bytes, such as "2GiB"; "60%%": of the peak, for which the beginning of the script is run once before, '
        'up to its second step; "auto": nine tenths of the free memory',
    )
    run.add_argument("--stop-after", type=int, metavar="STEPS", help="stop the script after so many steps")
    run.add_argument("--policy", default="coop", help="chooses what is evicted (default: coop)")
    run.add_argument(
        "--overflow", choices=("raise", "spill"), default="raise", help="what happens when it does not fit"
    )
    run.add_argument(
        "--offload",
        metavar="WHERE",
        help="a second tier of memory for what is slower to recompute than to fetch, or cannot be recomputed: bytes, "
        'such as "16GiB", "disk", or a folder for the file',
    )
    run.add_argument(
        "--max-slowdown",
        type=float,
        default=10.0,
        metavar="TIMES",
        help="fail when a step becomes slower than this; inf for no limit (default: 10)",
    )
    add_json(run, "the run")
    run.add_argument("--report", metavar="PATH", help="write a page about the run (.html)")
    run.add_argument("--source-lines", action="store_true", help="note which lines and modules are recomputed most")
    run.add_argument("-v", "--verbose", action="store_true", help="print the engine's figures, too")
    add_script(run)
    run.set_defaults(command=run_command)
    record = commands.add_parser(
        "record",
        help="record a script's op stream as a trace",
        description="Run an unmodified script without a budget and write what it asked for as a trace: ops with "
        "measured costs, storages, the memory that kernels ask for, and where each tensor dies. Prints a summary to "
        "stderr at the end, also when the script fails, and exits with the script's exit code.",
        epilog=_RECORD,
        **EXAMPLES,
    )
    record.add_argument("-o", "--output", required=True, metavar="FILE", help="the trace (.gz compresses)")
    record.add_argument(
        "--costs",
        choices=("median", "measured"),
        default="median",
        help="the median over ops of the same operator, sizes and types, or each as it was (default: median)",
    )
    record.add_argument("--source-lines", action="store_true", help="note the line that each op came from")
    add_json(record, "what was recorded, in short,")
    add_script(record)
    record.set_defaults(command=record_command)


def run_command(options: argparse.Namespace) -> int:
    """Run `options.script` in a budget; return its exit code."""
    check_script(options)
    check_budget(options.budget)
    check_outputs(options.json, options.report)
    if options.stop_after is not None and options.stop_after < 1:
        raise ValueError(f"--stop-after is 1 step or more, not {options.stop_after}")
    from remint.advice.script_steps import script_steps
    from remint.runtime.budget import budget

    budget_text = options.budget
    if budget_text.endswith("%"):
        parse_budget(budget_text, peak_bytes=0)
        peak = _measured_peak(options)
        budget_text = str(parse_budget(budget_text, peak_bytes=peak))
        print(
            f"remint: It takes {format_bytes(peak)} without a budget; {options.budget} of that are "
            f"{format_bytes(int(budget_text))}.",
            file=sys.stderr,
        )
    timeline = bool(options.report or options.json)
    with_budget = budget(
        budget_text,
        policy=options.policy,
        overflow=options.overflow,
        offload=options.offload,
        max_slowdown=options.max_slowdown,
        timeline=timeline,
        blocks=bool(options.report),
        source_lines=options.source_lines,
    )
    stdout = reserve_stdout() if options.json == "-" else None
    steps = _Steps(options.stop_after)
    with script_steps(steps.ended), with_budget as run:
        steps.run = run
        ended = run_script(options)
        run._failed(ended.error)
        summary, engine, result = run.summary(), str(run), run.finished()
    fitted = verdict(summary, wanted_bytes=result.wanted_bytes)
    if ended.code:
        fitted = fitted.replace("Fitted", "Until then it fitted", 1)
    for line in (str(ended), fitted, misplaced_options(options, _OPTIONS) if ended.code == 2 else ""):
        if line:
            print(f"remint: {line}", file=sys.stderr)
    if options.verbose:
        print(engine, file=sys.stderr)
    if options.json is not None:
        write_json(options.json, result.to_json() | summary | {"exit_code": ended.code}, stdout=stdout)
    if options.report is not None:
        result.report(options.report)
        print(f"remint: The report is {Path(options.report).resolve()}", file=sys.stderr)
    return ended.code


class _Steps:
    """Counts the steps of the script, stops it after enough of them, and says so when they are slow."""

    SLOW = 3.0

    def __init__(self, stop_after: int | None) -> None:
        self.run: LiveRun | None = None
        self._stop_after = stop_after
        self._number = 0
        self._next_line = 1
        self._before = (0.0, 0.0)

    def ended(self) -> bool:
        """A step ended; return whether it was the last one."""
        self._number += 1
        if self.run is not None:
            now = (self.run.computed_seconds, self.run.rematerialized_seconds)
            computed, again = now[0] - self._before[0], now[1] - self._before[1]
            self._before = now
            # Seldom, and less so the longer it lasts.
            if computed and 1 + again / computed > self.SLOW and self._number >= self._next_line:
                self._next_line = 2 * self._number
                print(
                    f"remint: step {self._number}, {1 + again / computed:.0f}x slower: the budget of "
                    f"{format_bytes(self.run.budget_bytes)} is small for it, and at least "
                    f"{format_bytes(self.run.min_budget_bytes)} are needed. `remint advise` finds a better one.",
                    file=sys.stderr,
                    flush=True,
                )
        return self._number == self._stop_after


def _measured_peak(options: argparse.Namespace) -> int:
    """Return the most bytes that the script takes without a budget, up to the end of its second step.

    The second step has the state of the optimizer, and the gradients of the first one.
    """
    everything = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "run.json"
        # A process of its own: what it leaves behind does not count in the budget.
        command = [sys.executable, "-m", "remint", "run", "--budget", str(everything), "--stop-after", "2"]
        command += ["--json", str(figures), *(["-m"] if options.module else []), options.script, *options.args]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0 or not figures.exists():
            said = [line for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
            raise ValueError(
                f"the peak of {options.script} could not be measured, it failed with exit code {done.returncode}:\n"
                + "\n".join(said[-6:])
            )
        return int(json.loads(figures.read_text())["peak_bytes"])


def record_command(options: argparse.Namespace) -> int:
    """Run `options.script` and write its trace; return its exit code."""
    check_script(options)
    check_outputs(options.output, options.json)
    from remint.runtime.recording import record

    stdout = reserve_stdout() if options.json == "-" else None
    with record(costs=options.costs, source_lines=options.source_lines) as recording:
        ended = run_script(options)
    trace = recording.trace
    trace.save(options.output)
    if str(ended):
        print(f"remint: {ended}", file=sys.stderr)
    print(
        f"{options.output}: {trace.num_ops:,} ops in {format_seconds(trace.seconds)}, {trace.num_tensors:,} tensors, "
        f"peak {format_bytes(recording.peak_bytes)}",
        file=sys.stderr,
    )
    if options.json is not None:
        summary = {"trace": options.output, "num_ops": trace.num_ops, "num_tensors": trace.num_tensors}
        figures = summary | {"seconds": trace.seconds, "peak_bytes": recording.peak_bytes}
        write_json(options.json, figures, stdout=stdout)
    return ended.code


def check_budget(budget: str) -> None:
    """Raise if a budget was meant to have a unit: no program runs in some thousand bytes."""
    if re.fullmatch(r"[\d.]+", budget) and parse_budget(budget) < 1 << 20:
        raise ValueError(f"--budget {budget} is {budget} bytes: did you mean {budget}GiB?")
