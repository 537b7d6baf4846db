"""The command line. Each file of this folder has the commands of one group."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from remint.cli import advise, fit, installation, plan, report, run, simulate
from remint.cli.output import EXAMPLES
from remint.errors import BudgetError
from remint.version import __version__

_EXAMPLES = """\
examples:
  remint advise train.py --epochs 3                   which budget to use
  remint run --budget 2GiB train.py --epochs 3        a script, in a budget
  remint fit train.py --vary batch_size=8:64 --budget 4GiB   largest batch
  remint record -o step.trace train.py --epochs 1     its op stream
  remint capture train.py:step -o step.graph          one step as a graph
  remint plan step.graph --budget 50% -o step.plan    its cheapest schedule
  remint simulate step.trace --budget 70%,50%         what it would cost
  remint sweep step.trace -o sweep.html               all policies and budgets
  remint report step.plan -o plan.html                a page about it
  remint doctor                                       check the installation
  remint build                                        build the runtime now
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, 1 if the command failed, or 2 for a mistake in its arguments."""
    words = list(sys.argv[1:] if argv is None else argv)
    # `remint fit` has options on both sides of its script: the script's own arguments follow `--`.
    rest: list[str] = []
    if words[:1] == ["fit"] and "--" in words:
        words, rest = words[: words.index("--")], words[words.index("--") + 1 :]
    parser = _parser()
    args, unknown = parser.parse_known_args(words)
    if unknown:
        hint = (
            "\nThe script's own arguments follow --: remint fit train.py … -- --model gpt2" if words[0] == "fit" else ""
        )
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    if rest:
        args.args = rest
    try:
        code: int = args.command(args)
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        print(f"remint: {reason}", file=sys.stderr)
        return 2
    except (ValueError, BudgetError, ImportError) as error:
        print(f"remint: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("remint: interrupted", file=sys.stderr)
        return 130
    return code


class _Parser(argparse.ArgumentParser):
    """Says what to do about a mistake that everybody makes once."""

    def error(self, message: str) -> NoReturn:
        if "required: --budget" in message and self.prog.endswith(" run"):
            message += "\nOptions of remint come before the script: remint run --budget 2GiB train.py --epochs 3"
        super().error(message)


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = _Parser(
        prog="remint",
        description="Train inside a memory budget that holds, by tensor rematerialization.",
        epilog=_EXAMPLES,
        **EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"remint {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    advise.add_commands(commands)
    run.add_commands(commands)
    fit.add_commands(commands)
    plan.add_commands(commands)
    simulate.add_commands(commands)
    report.add_commands(commands)
    installation.add_commands(commands)
    return parser
