"""The runs of DTR's own simulator, and the traces they are of. They lie beside the repository, not in it."""

from __future__ import annotations

import csv
import functools
from pathlib import Path

import pytest

import remint

REFERENCE = Path(__file__).resolve().parents[3] / "shared" / "dtr"

needs_reference = pytest.mark.skipif(
    not (REFERENCE / "reference.csv").is_file(), reason=f"DTR's traces and results are not at {REFERENCE}"
)


def reference_rows() -> list[dict[str, str]]:
    if not (REFERENCE / "reference.csv").is_file():
        return []
    with (REFERENCE / "reference.csv").open() as file:
        return list(csv.DictReader(file))


@functools.cache
def dtr_trace(model: str, *, releases: bool) -> remint.Trace:
    return remint.Trace.from_dtr_log(REFERENCE / f"{model}.log.gz", releases=releases)


def row_trace(row: dict[str, str]) -> remint.Trace:
    return dtr_trace(row["model"], releases=row["deallocation"] != "releases-dropped")


def row_deallocation(row: dict[str, str]) -> str:
    return "ignore" if row["deallocation"] == "ignore" else "eager"


def row_name(row: dict[str, str]) -> str:
    return "-".join(row[column] for column in ("model", "deallocation", "policy", "ratio"))
