"""The header of remint's JSON files: which kind of file it is, and of which version."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Mapping
from typing import Any


def kind_of(path: str | os.PathLike[str]) -> str | None:
    """Return what a file of remint's says it is (`trace`, `graph`, `plan`, `run`); None for other files."""
    try:
        with open(path, "rb") as file:
            begin = file.read(4096)
        if begin[:2] == b"\x1f\x8b":
            with gzip.open(path) as packed:
                begin = packed.read(4096)
    except OSError:
        return None
    found = re.search(rb'"format": ?"remint[.-](\w+)"', begin)
    return found[1].decode() if found else None


def check_format(data: Mapping[str, Any], name: str, version: int) -> None:
    """Raise unless `data` is a file of kind `name` and of a version that this code reads."""
    if not isinstance(data, Mapping) or data.get("format") != name:
        found = data.get("format") if isinstance(data, Mapping) else type(data).__name__
        raise ValueError(f"not a {name} file: its format is {found!r}")
    if data.get("version") != version:
        raise ValueError(
            f"this {name} file has version {data.get('version')!r}, this remint reads version {version}: "
            "write it again with this remint"
        )
