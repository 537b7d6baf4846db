"""Names for what a simulation did: the labels of blocks, and which op was run again for which."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from remint.results.block_log import BlockLog, Columns, Label
from remint.results.run import RematerializedOp
from remint.trace import Trace


def block_log(trace: Trace, columns: Columns) -> BlockLog:
    """Return the engine's log with a label for each block: tags are tensors there, and events for marks."""
    return BlockLog.labelled(
        columns,
        trace.out_offsets[:-1],
        lambda event: _label(trace, event).name,
        lambda event: _label(trace, event),
    )


def rematerialized(trace: Trace, decisions: Sequence[str]) -> tuple[RematerializedOp, ...]:
    """Return what was run again, by op of the program, and which ops needed it."""
    event_of = np.repeat(np.arange(trace.num_events), np.diff(trace.out_offsets)).tolist()
    times: Counter[int] = Counter()
    needed_by: dict[int, Counter[str]] = defaultdict(Counter)
    waiting: list[int] = []  # run again since the last op of the program, for the next one
    for decision in decisions:
        kind, event = decision[0], event_of[int(decision[1:])]
        if kind == "R":
            times[event] += 1
            waiting.append(event)
        elif kind == "C":
            for again in waiting:
                needed_by[again][_label(trace, event).name] += 1
            waiting.clear()
    for again in waiting:
        needed_by[again]["the end of the step"] += 1
    rows = []
    for event, count in times.items():
        label = _label(trace, event)
        seconds = float(trace.nanoseconds[event]) * 1e-9 * count
        why = ", ".join(name for name, _ in needed_by[event].most_common(3))
        rows.append(RematerializedOp(label.name, label.source, count, seconds, why))
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _label(trace: Trace, event: int) -> Label:
    source = trace.source_ids[event]
    return Label(trace.names[trace.name_ids[event]], trace.sources[source] if source >= 0 else "")
