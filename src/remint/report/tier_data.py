"""What the page shows of a tier below a run's memory: transfers, and what was offloaded and why."""

from __future__ import annotations

from collections import Counter
from typing import Any

from remint.report.columns import MOST_POINTS, MOST_ROWS
from remint.results.block_log import BlockLog
from remint.results.run import Run, split_source
from remint.units import format_bytes, format_seconds


def tier_cards(run: Run) -> list[list[Any]]:
    """Return what the tier did, in three figures."""
    clean = f", {run.num_clean_offloads:,} more had a copy there" if run.num_clean_offloads else ""
    return [
        [format_bytes(run.offloaded_bytes), f"offloaded in {run.num_offloads:,} copies{clean}"],
        [format_bytes(run.fetched_bytes), f"fetched, {run.num_fetches:,} times"],
        [format_seconds(run.transfer_seconds), f"in transfers; the tier held {format_bytes(run.offload_peak_bytes)}"],
    ]


def transfer_columns(log: BlockLog) -> dict[str, Any]:
    """Return when storages left for the tier and came back, and which ones left most: [name, source, why, …]."""
    transfers = log.transfers()
    if not transfers:
        return {}
    counts: Counter[tuple[int, bool]] = Counter()
    sizes: Counter[tuple[int, bool]] = Counter()
    for transfer in transfers:
        if transfer.leaves:
            counts[transfer.label, transfer.was_pinned] += 1
            sizes[transfer.label, transfer.was_pinned] += transfer.nbytes
    rows = []
    for (label, pinned), nbytes in sizes.most_common(MOST_ROWS):
        name, source = log.labels[label]
        why = "it cannot be recomputed" if pinned else "fetching it is quicker"
        rows.append([name, counts[label, pinned], nbytes, why, *split_source(source)])
    shown = transfers if len(transfers) <= MOST_POINTS else transfers[:: -(-len(transfers) // MOST_POINTS)]
    return {
        "transfers": {"t": [t.seconds for t in shown], "leaves": [t.leaves for t in shown]},
        "offloaded": rows,
        "offloaded_left_out": max(0, len(sizes) - MOST_ROWS),
    }
