"""What all commands have in common: help with examples, and `--json`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, TypedDict


class _Formatter(TypedDict):
    formatter_class: type[argparse.RawDescriptionHelpFormatter]


# Keeps the lines of the examples in the epilog as they are.
EXAMPLES: _Formatter = {"formatter_class": argparse.RawDescriptionHelpFormatter}


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `--json PATH`."""
    parser.add_argument("--json", metavar="PATH", help=f"write {what} as JSON; - for standard output, and no table")


def write_json(path: str, data: Any) -> None:
    """Write to the file, or to standard output for `-`."""
    text = json.dumps(data, indent=1) + "\n"
    if path == "-":
        sys.stdout.write(text)
    else:
        Path(path).write_text(text)
