"""What all commands have in common: help with examples, `--json`, and files to write."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, TextIO, TypedDict

from remint.defaults import MAX_SLOWDOWN, POLICY
from remint.offload import Offload
from remint.units import parse_budget


class _ExamplesAsTheyAre(argparse.HelpFormatter):
    """Folds descriptions to the terminal, and keeps the lines of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("examples:") else super()._fill_text(text, width, indent)


class _Formatter(TypedDict):
    formatter_class: type[argparse.HelpFormatter]


EXAMPLES: _Formatter = {"formatter_class": _ExamplesAsTheyAre}


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `--json PATH`."""
    parser.add_argument("--json", metavar="PATH", help=f"write {what} as JSON; - for standard output, and no table")


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Add `--policy NAME`."""
    parser.add_argument("--policy", default=POLICY, metavar="NAME", help=f"chooses what is evicted (default: {POLICY})")


def add_max_slowdown(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `--max-slowdown TIMES`; `what` says what happens then."""
    parser.add_argument(
        "--max-slowdown",
        type=float,
        default=MAX_SLOWDOWN,
        metavar="TIMES",
        help=f"{what}; inf for no limit (default: {MAX_SLOWDOWN:g})",
    )


def add_tier(parser: argparse.ArgumentParser) -> None:
    """Add `--offload BYTES` and `--bandwidth BYTES`, for a tier that is simulated."""
    parser.add_argument(
        "--offload", metavar="BYTES", help='with a second tier of memory of so many bytes, such as "16GiB"'
    )
    parser.add_argument(
        "--bandwidth", metavar="BYTES", help='of that tier: bytes per second each way, such as "8GB" (default: 1GB)'
    )


def tier_of(options: argparse.Namespace) -> Offload | None:
    """Return the tier that `--offload` and `--bandwidth` describe, None without."""
    if options.offload is None:
        if options.bandwidth is not None:
            raise ValueError("--bandwidth is that of a tier: say how much the tier holds, as in --offload 16GiB")
        return None
    return Offload(bytes=options.offload, bandwidth=options.bandwidth)


def write_json(path: str, data: Any, *, stdout: TextIO | None = None) -> None:
    """Write to the file, or to standard output for `-`."""
    text = json.dumps(data, indent=1) + "\n"
    if path == "-":
        (stdout or sys.stdout).write(text)
        (stdout or sys.stdout).flush()
    else:
        Path(path).write_text(text)


def check_budgets(budgets: str, option: str = "--budget", *, peak_bytes: int = 1 << 30) -> None:
    """Raise if one of the budgets was meant to have a unit: nothing runs in a thousandth of its peak."""
    for budget in budgets.split(","):
        if re.fullmatch(r"[\d.]+", budget) and parse_budget(budget) < peak_bytes // 1024:
            raise ValueError(f"{option} {budget} is {budget} bytes: did you mean {budget}GiB?")


def check_outputs(*paths: str | os.PathLike[str] | None) -> None:
    """Raise if a file cannot be written, before the work that fills it. None and `-` are no files."""
    for path in paths:
        if path is None or str(path) == "-":
            continue
        folder = Path(path).parent
        if not folder.is_dir():
            raise ValueError(f"{path} cannot be written: there is no folder {str(folder)!r}")
        if Path(path).is_dir():
            raise ValueError(f"{path} cannot be written: it is a folder. Give the name of a file")
        if not os.access(path if Path(path).exists() else folder, os.W_OK):
            raise ValueError(f"{path} cannot be written: permission denied")


def reserve_stdout() -> TextIO:
    """Return standard output for us alone. From now on, what the script and its processes print goes to stderr."""
    sys.stdout.flush()
    own = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return own
