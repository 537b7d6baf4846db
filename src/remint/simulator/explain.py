"""Names for what a simulation did: the labels of blocks, and which op was run again for which."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from remint.blocks import MARK, BlockLog, Label
from remint.run import Again
from remint.trace import Trace


def block_log(
    trace: Trace,
    seconds: npt.NDArray[np.float64],
    changes: str,
    storages: npt.NDArray[np.int64],
    tags: npt.NDArray[np.int64],
    addresses: npt.NDArray[np.int64],
    nbytes: npt.NDArray[np.int64],
) -> BlockLog:
    """Return the engine's log with a label for each block: tags are tensors there, and events for marks."""
    is_mark = np.frombuffer(changes.encode(), dtype=np.uint8) == ord(MARK)
    events = np.where(is_mark, tags, np.searchsorted(trace.out_offsets, tags, side="right") - 1)
    events[(storages < 0) & ~is_mark] = -1
    used, label_ids = np.unique(events, return_inverse=True)
    labels = tuple(Label("scratch") if event < 0 else _label(trace, int(event)) for event in used)
    return BlockLog(seconds, changes, storages, label_ids.astype(np.int64), addresses, nbytes, labels)


def rematerialized(trace: Trace, decisions: Sequence[str]) -> tuple[Again, ...]:
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
        rows.append(Again(label.name, label.source, count, seconds, why))
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _label(trace: Trace, event: int) -> Label:
    source = trace.source_ids[event]
    return Label(trace.names[trace.name_ids[event]], trace.sources[source] if source >= 0 else "")
