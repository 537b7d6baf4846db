"""`remint run` and `remint record`: an unmodified script, from before its first tensor to its end."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from remint.cli.output import EXAMPLES, add_json, write_json
from remint.units import format_bytes, format_seconds

_RUN = """\
examples:
  remint run --budget 2GiB train.py --epochs 3
  remint run --budget 2GiB --report run.html train.py
  remint run --budget 500MiB --overflow spill --json run.json -m package.train
"""
_RECORD = """\
examples:
  remint record -o step.trace train.py --epochs 1
  remint simulate step.trace --memory arena --policy coop,dtr-eq --budget 70%,50%
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands, which import torch only when one runs."""
    run = commands.add_parser(
        "run",
        help="run a script inside a memory budget",
        description="Run an unmodified script with all its CPU tensors in an arena of exactly the budget. Prints a "
        "summary to stderr at the end, also when the script fails, and exits with the script's exit code.",
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
    run.add_argument("--source-lines", action="store_true", help="show which lines and modules were recomputed most")
    _add_script(run)
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
    _add_script(record)
    record.set_defaults(command=record_command)


def _add_script(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module, as in python -m")
    parser.add_argument("script", help="the script")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")


def run_command(options: argparse.Namespace) -> int:
    """Run `options.script` in a budget; return its exit code."""
    from remint.runtime.budget import budget

    _check_script(options)
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
    with with_budget as run:
        code, error = _run_script(options)
        run._failed(error)
        summary, text, result = run.summary(), str(run), run.finished()
    print(text, file=sys.stderr)
    if options.json is not None:
        write_json(options.json, result.to_json() | summary)
    if options.report is not None:
        result.report(options.report)
        print(f"report: {Path(options.report).resolve()}", file=sys.stderr)
    return code


def record_command(options: argparse.Namespace) -> int:
    """Run `options.script` and write its trace; return its exit code."""
    from remint.runtime.recording import record

    _check_script(options)
    with record(costs=options.costs, source_lines=options.source_lines) as recording:
        code, _ = _run_script(options)
    trace = recording.trace
    trace.save(options.output)
    print(
        f"{options.output}: {trace.num_ops:,} ops in {format_seconds(trace.seconds)}, {trace.num_tensors:,} tensors, "
        f"peak {format_bytes(recording.peak_bytes)}",
        file=sys.stderr,
    )
    if options.json is not None:
        summary = {"trace": options.output, "num_ops": trace.num_ops, "num_tensors": trace.num_tensors}
        write_json(options.json, summary | {"seconds": trace.seconds, "peak_bytes": recording.peak_bytes})
    return code


def _check_script(options: argparse.Namespace) -> None:
    if not options.module and not Path(options.script).exists():
        raise ValueError(f"there is no file {options.script!r}: give the script to run after the options")


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
