"""`remint run`: an unmodified script inside a budget, from before its first tensor to its end."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from remint.cli_output import EXAMPLES, add_json, write_json

_RUN = """\
examples:
  remint run --budget 2GiB train.py --epochs 3
  remint run --budget 2GiB --report run.html train.py
  remint run --budget 500MiB --overflow spill --json run.json -m package.train
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command, which imports torch only when it runs."""
    run = commands.add_parser(
        "run",
        help="run a script inside a memory budget",
        description="Run an unmodified script with all its CPU tensors in an arena of exactly the budget. Prints a "
        "summary to stderr at the end, also when the script fails, and exits with the script's exit code.",
        epilog=_RUN,
        **EXAMPLES,
    )
    run.add_argument("--budget", required=True, help='bytes, such as "2GiB"')
    run.add_argument("--policy", default="coop", help="who is evicted (default: coop)")
    run.add_argument(
        "--overflow", choices=("raise", "spill"), default="raise", help="what happens when it does not fit"
    )
    add_json(run, "the run")
    run.add_argument("--report", metavar="PATH", help="write a page about the run (.html)")
    _add_script(run)
    run.set_defaults(command=run_command)


def _add_script(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module, as in python -m")
    parser.add_argument("script", help="the script")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")


def run_command(options: argparse.Namespace) -> int:
    """Run `options.script` in a budget; return its exit code."""
    from remint.online.budget import budget

    _check_script(options)
    timeline = bool(options.report or options.json)
    with_budget = budget(options.budget, policy=options.policy, overflow=options.overflow, timeline=timeline)
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
