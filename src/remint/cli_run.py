"""`remint run` and `remint record`: an unmodified script inside a budget, or recorded."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from pathlib import Path
from typing import Any

from remint.units import format_bytes, format_seconds


def add_run(subparsers: Any) -> None:
    """Add the commands to the parser; torch is imported only when one runs."""
    run = subparsers.add_parser(
        "run",
        help="run a script inside a memory budget",
        description="Run an unmodified script with all its CPU tensors in an arena of exactly the budget. Prints a "
        "summary to stderr at the end, also when the script fails, and exits with the script's exit code.",
    )
    run.add_argument("--budget", required=True, help='bytes, such as "2GiB"')
    run.add_argument("--policy", default="coop", help="who is evicted (default: coop)")
    run.add_argument(
        "--overflow", choices=("raise", "spill"), default="raise", help="what happens when it does not fit"
    )
    run.add_argument("--json", metavar="FILE", help="write the figures there")
    run.add_argument("--source-lines", action="store_true", help="say which lines were computed again most")
    _add_script(run)
    run.set_defaults(command=run_command)
    record = subparsers.add_parser(
        "record",
        help="record a script's op stream as a trace",
        description="Run an unmodified script without a budget and write what it asked for as a trace: ops with "
        "measured costs, storages, the memory that kernels ask for, and where each tensor dies. Prints a summary to "
        "stderr at the end, also when the script fails, and exits with the script's exit code.",
        epilog="example: remint record -o step.trace train.py --epochs 1, then "
        "remint simulate step.trace --memory arena --moving --policy coop,dtr-eq --budget 70%,50%",
    )
    record.add_argument("-o", "--output", required=True, metavar="FILE", help="the trace (.gz compresses)")
    record.add_argument(
        "--costs",
        choices=("median", "measured"),
        default="median",
        help="the median over ops of the same operator, sizes and types, or each as it was (default: median)",
    )
    record.add_argument("--source-lines", action="store_true", help="note the line that each op came from")
    _add_script(record)
    record.set_defaults(command=record_command)


def _add_script(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module, as in python -m")
    parser.add_argument("script", help="the script")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")


def run_command(options: argparse.Namespace) -> int:
    """Run `options.script` in a budget; return its exit code."""
    from remint.online.budget import budget

    if _missing(options, "run"):
        return 2
    with_budget = budget(
        options.budget, policy=options.policy, overflow=options.overflow, source_lines=options.source_lines
    )
    with with_budget as run:
        code, error = _run_script(options)
        run._failed(error)
        summary, text = run.summary(), str(run)
    print(text, file=sys.stderr)
    if options.json:
        Path(options.json).write_text(json.dumps(summary, indent=2) + "\n")
    return code


def record_command(options: argparse.Namespace) -> int:
    """Run `options.script` and write its trace; return its exit code."""
    from remint.online.recording import record

    if _missing(options, "record"):
        return 2
    with record(costs=options.costs, source_lines=options.source_lines) as recording:
        code, _ = _run_script(options)
    trace = recording.trace
    trace.save(options.output)
    print(
        f"{options.output}: {trace.num_ops:,} ops in {format_seconds(trace.seconds)}, {trace.num_tensors:,} tensors, "
        f"peak {format_bytes(recording.peak_bytes)}",
        file=sys.stderr,
    )
    return code


def _missing(options: argparse.Namespace, command: str) -> bool:
    if options.module or Path(options.script).exists():
        return False
    print(f"remint {command}: there is no file {options.script!r}", file=sys.stderr)
    return True


def _run_script(options: argparse.Namespace) -> tuple[int, BaseException | None]:
    """Run the script as Python would; return its exit code, and the error it ended with, which has been printed."""
    sys.argv = [options.script, *options.args]
    try:
        if options.module:
            sys.path.insert(0, "")
            runpy.run_module(options.script, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(options.script).resolve().parent))
            runpy.run_path(options.script, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0, None
        print(end.code, file=sys.stderr)
        return 1, None
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1, error
    return 0, None
