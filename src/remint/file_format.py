"""The header of remint's JSON files: which kind of file it is, and of which version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
