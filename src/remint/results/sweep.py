"""Sweep: the rows of many runs."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from remint.notebook import as_html

Row = dict[str, Any]


class Sweep(Sequence[Row]):
    """The rows of a sweep, one per run, in the order of traces, policies and budgets."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = tuple(rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write a page with slowdown against budget for each trace: one HTML file, which works offline."""
        from remint.report import write_html

        write_html(path, [self])

    def _repr_html_(self) -> str:
        budgets = list(dict.fromkeys(str(row["budget"]) for row in self.rows))
        lines: dict[tuple[str, str], dict[str, str]] = {}
        for row in self.rows:
            cell = f"{row['slowdown']:.2f}×" if row["status"] == "ok" else row["status"]
            lines.setdefault((row["trace"], row["policy"]), {})[str(row["budget"])] = cell
        rows = [
            [trace, policy, *(cells.get(budget, "") for budget in budgets)] for (trace, policy), cells in lines.items()
        ]
        sentence = f"{len(self.rows)} runs: slowdown for each policy and budget."
        return as_html(sentence, ["trace", "policy", *budgets], rows)

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the rows as CSV; write it to `path`, if given."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, fieldnames=list(self.rows[0]) if self.rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return _written(text.getvalue(), path)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the rows as a JSON list; write it to `path`, if given."""
        return _written(json.dumps(self.rows, indent=1) + "\n", path)


def _written(text: str, path: str | os.PathLike[str] | None) -> str:
    if path is not None:
        Path(path).write_text(text)
    return text
