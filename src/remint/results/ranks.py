"""The figures of all ranks of one run, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from remint.units import format_bytes, format_seconds

_HEADINGS = ("rank", "budget", "peak", "slowdown", "ops again", "collectives", "own time", "")


def own_seconds(figures: Mapping[str, Any]) -> float:
    """Return the time that a rank spent on its own work: all but collectives, where it waits for others.

    >>> own_seconds({"computed_seconds": 2.0, "rematerialized_seconds": 0.5, "collective_seconds": 9.0})
    2.5
    """
    parts = ("computed_seconds", "rematerialized_seconds", "search_seconds", "bookkeeping_seconds")
    return float(sum(figures.get(part, 0.0) for part in parts))


def slowest_rank(ranks: Mapping[int, Mapping[str, Any]]) -> int:
    """Return the rank whose own work took longest: the others wait for it."""
    return max(ranks, key=lambda rank: own_seconds(ranks[rank]))


def ranks_table(ranks: Mapping[int, Mapping[str, Any]]) -> str:
    """Return a table of the ranks, given what the `summary()` of each run returns, and a line about the slowest one.

    >>> figures = {"status": "ok", "budget_bytes": 30 << 20, "peak_bytes": 29 << 20, "num_rematerializations": 12}
    >>> times = {"computed_seconds": 2.0, "rematerialized_seconds": 0.2, "collective_seconds": 0.5}
    >>> print(ranks_table({0: figures | times, 1: figures | times | {"computed_seconds": 3.0}}))
    rank    budget      peak  slowdown  ops again  collectives  own time
       0  30.0 MiB  29.0 MiB     1.10x         12     500.0 ms     2.2 s
       1  30.0 MiB  29.0 MiB     1.07x         12     500.0 ms     3.2 s
    Slowest: rank 1, 3.2 s for its own ops. The others waited up to 500.0 ms in collectives.
    """
    rows = [list(_HEADINGS), *(_row(rank, ranks[rank]) for rank in sorted(ranks))]
    widths = [max(len(row[k]) for row in rows) for k in range(len(_HEADINGS))]
    lines = [_line(row, widths) for row in rows]
    slowest = slowest_rank(ranks)
    waited = max(
        (figures.get("collective_seconds", 0.0) for rank, figures in ranks.items() if rank != slowest), default=0
    )
    lines.append(
        f"Slowest: rank {slowest}, {format_seconds(own_seconds(ranks[slowest]))} for its own ops. "
        f"The others waited up to {format_seconds(waited)} in collectives."
    )
    return "\n".join(lines)


def _row(rank: int, figures: Mapping[str, Any]) -> list[str]:
    return [
        str(rank),
        format_bytes(figures["budget_bytes"]),
        format_bytes(figures["peak_bytes"]),
        f"{own_seconds(figures) / figures['computed_seconds']:.2f}x" if figures["computed_seconds"] else "1.00x",
        f"{figures['num_rematerializations']:,}",
        format_seconds(figures.get("collective_seconds", 0.0)),
        format_seconds(own_seconds(figures)),
        _outcome(figures),
    ]


def _outcome(figures: Mapping[str, Any]) -> str:
    if figures["status"] == "oom":
        return "did not fit"
    code = figures.get("exit_code", 0)
    return f"exit code {code}" if code else ""


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    *columns, outcome = row
    numbers = "  ".join(text.rjust(width) for text, width in zip(columns, widths, strict=False))
    return f"{numbers}  {outcome}".rstrip()
