"""What came of a run, in one sentence for people who train, not for people who work on remint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remint.units import format_bytes


def verdict(figures: Mapping[str, Any], *, wanted_bytes: int | None = None) -> str:
    """Return one sentence about the figures of a run, as its `summary()` returns them.

    `wanted_bytes` is what it would have taken without a budget, if that is known.

    >>> figures = {"status": "ok", "budget_bytes": 30 << 20, "peak_bytes": 29 << 20, "num_rematerializations": 12}
    >>> times = {"computed_seconds": 2.0, "rematerialized_seconds": 0.2, "search_seconds": 0.1}
    >>> verdict(figures | times)
    'Fitted into 30.0 MiB (peak 29.0 MiB); 15% slower: 12 ops ran again.'
    >>> verdict(figures | times, wanted_bytes=50 << 20)
    'Fitted 50.0 MiB into 30.0 MiB; 15% slower: 12 ops ran again.'
    >>> verdict(figures | times | {"num_rematerializations": 0})
    'Fitted into 30.0 MiB without recomputing anything (peak 29.0 MiB).'
    >>> verdict(figures | times | {"num_fetches": 8, "fetched_bytes": 5 << 20})
    'Fitted into 30.0 MiB (peak 29.0 MiB); 15% slower: 12 ops ran again, and 8 tensors (5.0 MiB) were fetched.'
    """
    budget, peak = format_bytes(figures["budget_bytes"]), format_bytes(figures["peak_bytes"])
    if figures["status"] == "oom":
        return f"Did not fit into {budget}."
    if figures["status"] == "thrash":
        return f"Too slow in {budget}: recomputing took more time than was allowed."
    again = figures["num_rematerializations"]
    fetches = figures.get("num_fetches", 0)
    if again == 0 and fetches == 0:
        return f"Fitted into {budget} without recomputing anything (peak {peak})."
    ran = "1 op ran again" if again == 1 else f"{again:,} ops ran again"
    if fetches > 0:
        tensors = "1 tensor" if fetches == 1 else f"{fetches:,} tensors"
        ran += f", and {tensors} ({format_bytes(figures['fetched_bytes'])}) were fetched"
    if wanted_bytes is not None and wanted_bytes > figures["budget_bytes"]:
        return f"Fitted {format_bytes(wanted_bytes)} into {budget}; {slower(figures)}: {ran}."
    return f"Fitted into {budget} (peak {peak}); {slower(figures)}: {ran}."


def slower(figures: Mapping[str, Any]) -> str:
    """Return how much longer the ops of a run took: recomputing, transfers, searching, and measured bookkeeping.

    >>> slower({"computed_seconds": 1.0, "rematerialized_seconds": 2.5, "search_seconds": 0.0})
    '3.5 times as slow'
    """
    parts = ("rematerialized_seconds", "transfer_seconds", "search_seconds", "bookkeeping_seconds")
    more = sum(figures.get(part, 0.0) for part in parts)
    times = more / figures["computed_seconds"] if figures["computed_seconds"] else 0.0
    return f"{times:.0%} slower" if times < 1 else f"{1 + times:.1f} times as slow"
