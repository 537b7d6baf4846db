"""What all commands have in common: help with examples, `--json`, and files to write."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO, TypedDict


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


def write_json(path: str, data: Any, *, stdout: TextIO | None = None) -> None:
    """Write to the file, or to standard output for `-`."""
    text = json.dumps(data, indent=1) + "\n"
    if path == "-":
        (stdout or sys.stdout).write(text)
        (stdout or sys.stdout).flush()
    else:
        Path(path).write_text(text)


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
