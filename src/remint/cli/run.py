"""`remint run` and `remint record`: an unmodified script, from before its first tensor to its end."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from remint.cli.output import EXAMPLES, add_json, check_outputs, reserve_stdout, write_json
from remint.cli.script import add_script, check_script, misplaced_options, run_script
from remint.results.verdict import verdict
from remint.units import format_bytes, format_seconds, parse_budget

_OPTIONS = ["--budget", "--policy", "--overflow", "--json", "--report", "--source-lines", "-v", "--verbose"]

_RUN = """\
examples:
  remint run --budget 2GiB train.py --epochs 3
  remint run --budget 2GiB --report run.html -v train.py
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
        description="Run an unmodified script with all its CPU tensors in an arena of exactly the budget. Prints a "
        "summary to stderr at the end, also when the script fails or is stopped, and exits with its exit code.",
        epilog=_RUN,
        **EXAMPLES,
    )
    run.add_argument("--budget", required=True, help='bytes, such as "2GiB"')
    run.add_argument("--policy", default="coop", help="chooses what is evicted (default: coop)")
    run.add_argument(
        "--overflow", choices=("raise", "spill"), default="raise", help="what happens when it does not fit"
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
    from remint.runtime.budget import budget

    timeline = bool(options.report or options.json)
    with_budget = budget(
        options.budget,
        policy=options.policy,
        overflow=options.overflow,
        max_slowdown=options.max_slowdown,
        timeline=timeline,
        blocks=bool(options.report),
        source_lines=options.source_lines,
    )
    stdout = reserve_stdout() if options.json == "-" else None
    with with_budget as run:
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
