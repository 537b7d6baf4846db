"""`remint run`: an unmodified script inside a budget, from before its first tensor to its end."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from pathlib import Path
from typing import Any


def add_run(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `remint run`, which imports torch only when it runs."""
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
    run.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module, as in python -m")
    run.add_argument("script", help="the script")
    run.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    run.set_defaults(command=run_command)


def run_command(options: argparse.Namespace) -> int:
    """Run `options.script` in a budget; return its exit code."""
    from remint.online.budget import budget

    script, arguments = options.script, list(options.args)
    if not options.module and not Path(script).exists():
        print(f"remint run: there is no file {script!r}", file=sys.stderr)
        return 2
    sys.argv = [script, *arguments]
    code: Any = 0
    with_budget = budget(options.budget, policy=options.policy, overflow=options.overflow)
    with with_budget as run:
        try:
            if options.module:
                sys.path.insert(0, "")
                runpy.run_module(script, run_name="__main__", alter_sys=True)
            else:
                sys.path.insert(0, str(Path(script).resolve().parent))
                runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            code = end.code
        except BaseException as error:
            code = 130 if isinstance(error, KeyboardInterrupt) else 1
            run._failed(error)
            sys.excepthook(type(error), error, error.__traceback__)
        summary, text = run.summary(), str(run)
    print(text, file=sys.stderr)
    if options.json:
        Path(options.json).write_text(json.dumps(summary, indent=2) + "\n")
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1
