"""Runs an unmodified script as Python would, and says how it ended."""

from __future__ import annotations

import argparse
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from remint.cli.termination import Terminated, raises_on_sigterm
from remint.errors import BudgetError

_PACKAGE = str(Path(__file__).parent.parent)


class Ended(NamedTuple):
    """How a script ended."""

    code: int
    error: BaseException | None
    """It has been printed."""

    def __str__(self) -> str:
        if isinstance(self.error, BudgetError):
            return "The script failed: its budget is too small, see above."
        if isinstance(self.error, KeyboardInterrupt):
            return "The script was interrupted."
        if isinstance(self.error, Terminated):
            return "The script was terminated (SIGTERM)."
        if self.error is not None:
            return f"The script failed: {type(self.error).__name__}, see above."
        return f"The script ended with exit code {self.code}." if self.code else ""


def add_script(parser: argparse.ArgumentParser) -> None:
    """Add the script and its arguments, after all options."""
    parser.set_defaults(own_options=frozenset(parser._option_string_actions) - {"-h", "--help"})
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module, as in python -m")
    parser.add_argument("script", help="the script; options of remint come before it")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")


def check_script(options: argparse.Namespace) -> None:
    """Raise if there is no such script."""
    if not options.module and not Path(options.script).exists():
        raise ValueError(f"there is no file {options.script!r}: give the script to run after the options")


def run_script(
    options: argparse.Namespace,
    *,
    quiet: type[BaseException] | tuple[()] = (),
    explain: Callable[[BaseException], BaseException] | None = None,
) -> Ended:
    """Run the script; an error it ends with is printed, without frames of remint, unless it is a `quiet` one.

    `explain` may return a better error.
    """
    sys.argv = [options.script, *options.args]
    try:
        with raises_on_sigterm():
            if options.module:
                sys.path.insert(0, "")
                runpy.run_module(options.script, run_name="__main__", alter_sys=True)
            else:
                sys.path.insert(0, str(Path(options.script).resolve().parent))
                runpy.run_path(options.script, run_name="__main__")
    except Terminated as end:
        return Ended(128 + signal.SIGTERM, end)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return Ended(end.code or 0, None)
        print(end.code, file=sys.stderr)
        return Ended(1, None)
    except BaseException as raised:
        error = raised if explain is None else explain(raised)
        if error.__cause__ is not None:
            error.__cause__.with_traceback(_of_the_script(error.__cause__.__traceback__))
        frames = _of_the_script(error.__traceback__)
        if not isinstance(error, quiet):
            sys.excepthook(type(error), error.with_traceback(frames), frames)
        return Ended(130 if isinstance(error, KeyboardInterrupt) else 1, error)
    return Ended(0, None)


def misplaced_options(options: argparse.Namespace) -> str:
    """Return a hint if the script got options that remint has too, else nothing."""
    ours = [word for word in options.args if word.split("=")[0] in options.own_options]
    if not ours:
        return ""
    return f"Hint: {', '.join(ours)} came after the script's name, so the script got it. remint's options come before."


def _of_the_script(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames of remint and runpy."""
    kept = []
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if not name.startswith(_PACKAGE) and "runpy" not in name:
            kept.append(traceback)
        traceback = traceback.tb_next
    rest: TracebackType | None = None
    for entry in reversed(kept):
        rest = TracebackType(rest, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return rest
