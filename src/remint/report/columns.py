"""What both runs and plans have on the page: memory over time, and tables of holders and of rematerialized ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from remint.results.holders import Holder, shortened
from remint.results.run import RematerializedOp, split_source

MOST_POINTS = 20_000
MOST_ROWS = 20
MOST_HOLDERS = 10


def again_columns(rows: Sequence[RematerializedOp]) -> dict[str, Any]:
    """Return the rows of the table, the total, and how many rows were left out."""
    return {
        "again": [[*row, *split_source(row.source)] for row in rows[:MOST_ROWS]],
        "again_seconds": sum(row.seconds for row in rows),
        "again_left_out": max(0, len(rows) - MOST_ROWS),
    }


def line_columns(
    seconds: Any, resident: Any, pinned: Any = None, evicted: Any = None, offloaded: Any = None
) -> dict[str, Any]:
    """Return the columns; where there are too many points, the highest of each stretch stands for it."""
    take = np.arange(len(seconds))
    if len(take) > MOST_POINTS:
        stretches = np.array_split(take, MOST_POINTS)
        take = np.array([stretch[np.argmax(resident[stretch])] for stretch in stretches])
    columns = {"t": seconds, "resident": resident, "pinned": pinned, "evicted": evicted, "offloaded": offloaded}
    return {name: None if column is None else column[take].tolist() for name, column in columns.items()}


def holder_rows(holders: tuple[Holder, ...]) -> list[list[Any]]:
    """Return the rows of the table of what holds memory at the peak."""
    return [
        [holder.kind, holder.where, holder.num_storages, holder.nbytes] for holder in shortened(holders, MOST_HOLDERS)
    ]
