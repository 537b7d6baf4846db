"""The command `remint fit`: the largest size at which a script trains inside a budget."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from remint.cli.fit_attempts import AttemptsHere, AttemptsOfRanks
from remint.cli.output import (
    EXAMPLES,
    add_json,
    add_max_slowdown,
    add_policy,
    check_budgets,
    check_outputs,
    write_json,
)
from remint.cli.termination import Terminated, raises_on_sigterm
from remint.results.largest_fit import Attempt, Fit, find_largest
from remint.units import parse_budget

if TYPE_CHECKING:
    from remint.runtime.rank import Rank

_FIT = """\
examples:
  remint fit train.py --vary batch_size=8:64 --budget 4GiB
  remint fit train.py --vary batch_size=8,16 --budget 4GiB -- --model gpt2
  remint fit train.py --vary batch_size=8,16 --budget 4GiB --plot fit.svg
  remint fit train.py --vary size=64:256:64 --budget 1GiB -- --width {size}
  remint fit --nproc 2 train.py --vary batch_size=8,16 --budget 4GiB
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    fit = commands.add_parser(
        "fit",
        help="find the largest size at which a script trains inside a budget",
        description="Run a script again and again, each time in a process of its own with another size, and find the "
        "largest one that fits. The script gets --NAME SIZE, or the size in place of {NAME} in its arguments. While a "
        "size is slow, a line says so. A size that becomes slower than --max-slowdown does not fit. On several ranks, "
        "a size has to fit on each. Ctrl-C and SIGTERM print what was found so far.",
        epilog=_FIT,
        **EXAMPLES,
    )
    fit.add_argument("script", help="the script")
    fit.add_argument("--vary", required=True, metavar="NAME=SIZES", help="LOW:HIGH, LOW:HIGH:STEP, or A,B,C")
    fit.add_argument("--budget", required=True, help='bytes, such as "2GiB", for each rank')
    fit.add_argument(
        "--nproc",
        type=int,
        metavar="N",
        help="run the script on N ranks, which torchrun starts. Under torchrun, run -m remint fit … on each rank",
    )
    add_policy(fit)
    add_max_slowdown(fit, "a size does not fit if a step becomes slower than this")
    fit.add_argument("--plot", metavar="PATH", help="draw throughput against size (.png, .svg, .pdf)")
    add_json(fit, "all attempts")
    # The parser itself takes what follows `--` away: argparse has no place for it after options.
    fit.add_argument("args", nargs="*", metavar="-- args", help="after --: the script's own arguments")
    fit.set_defaults(command=fit_command)


def fit_command(options: argparse.Namespace) -> int:
    """Search for the largest size; return 0 if there is one, else 1."""
    if not Path(options.script).exists():
        raise ValueError(f"there is no file {options.script!r}: give the script to run")
    check_budgets(options.budget)
    check_outputs(options.json, options.plot)
    if not options.max_slowdown > 1:
        raise ValueError(f"--max-slowdown is more than 1, or inf for no limit, not {options.max_slowdown}")
    if options.nproc is not None and options.nproc < 1:
        raise ValueError(f"--nproc is 1 process or more, not {options.nproc}")
    name, sizes = _sizes(options.vary)
    rank = _rank()
    if rank is not None and options.nproc is not None:
        raise ValueError(f"this is {rank} of {rank.count} already: leave --nproc out")
    attempt = AttemptsHere(options, name) if rank is None else AttemptsOfRanks(options, name, rank)
    speaks = rank is None or rank.number == 0
    tried: list[Attempt] = []

    def progress(last: Attempt) -> None:
        tried.append(last)
        if not speaks:
            return
        verdict = f"fits, {last.throughput:.1f} per second" if last.fits else "does not fit"
        print(f"{name} {last.size}: {verdict}", file=sys.stderr)

    stopped: BaseException | None = None
    try:
        with raises_on_sigterm():
            found = find_largest(attempt, sizes, budget=options.budget, progress=progress)
    except (KeyboardInterrupt, Terminated, ValueError) as error:
        if not tried:
            raise
        # What was found so far is worth having.
        stopped = error
        in_order = tuple(sorted(tried, key=lambda attempt: attempt.size))
        found = Fit(budget_bytes=parse_budget(options.budget), attempts=in_order)
    if speaks:
        _show(found, options)
    if stopped is not None:
        raise stopped
    return 0 if found.largest is not None else 1


def _rank() -> Rank | None:
    """Return which rank of a launcher this is; None without torch's environment, which needs no import of torch."""
    if "RANK" not in os.environ:
        return None
    from remint.runtime.rank import this_rank

    return this_rank()


def _show(found: Fit, options: argparse.Namespace) -> None:
    if options.json is not None:
        write_json(options.json, found.summary())
    if options.json != "-":
        print(found)
    if options.plot:
        found.plot(options.plot)


def _sizes(vary: str) -> tuple[str, list[int]]:
    name, _, text = vary.partition("=")
    spans = re.fullmatch(r"(\d+):(\d+)(?::(\d+))?", text)
    if name and spans and int(spans[3] or 1) > 0 and int(spans[1]) <= int(spans[2]):
        return name, list(range(int(spans[1]), int(spans[2]) + 1, int(spans[3] or 1)))
    if name and re.fullmatch(r"\d+(,\d+)*", text):
        return name, sorted({int(size) for size in text.split(",")})
    raise ValueError(f"--vary {vary!r} is not understood: write NAME=LOW:HIGH, NAME=LOW:HIGH:STEP or NAME=A,B,C")
