"""The command line. Each file of this folder has the commands of one group."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from remint.cli import fit, installation, plan, report, run, simulate
from remint.cli.output import EXAMPLES
from remint.errors import BudgetError
from remint.version import __version__

_EXAMPLES = """\
examples:
  remint run --budget 2GiB train.py --epochs 3             an unmodified script, inside a budget
  remint fit train.py --vary batch_size=8:512 --budget 4GiB  the largest batch that trains inside it
  remint record -o step.trace train.py --epochs 1            its op stream, with measured costs
  remint capture train.py:step -o step.graph               one training step as a graph
  remint plan step.graph --budget 50% -o step.plan         its cheapest schedule in half the memory
  remint simulate step.trace --policy all --budget 70%,50% a recorded step, with every policy
  remint sweep step.trace -o sweep.html                    slowdown against budget, on one plot
  remint report step.plan -o plan.html                     a page about a run, a plan, a trace
  remint doctor                                            check the installation
  remint build                                             build the runtime now, not on first use
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, 1 if the command failed, or 2 for a mistake in its arguments."""
    parser = _parser()
    args = parser.parse_args(argv)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="remint",
        description="Train inside a memory budget that holds, by tensor rematerialization.",
        epilog=_EXAMPLES,
        **EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"remint {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run.add_commands(commands)
    fit.add_commands(commands)
    plan.add_commands(commands)
    simulate.add_commands(commands)
    report.add_commands(commands)
    installation.add_commands(commands)
    return parser
