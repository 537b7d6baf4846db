"""Export for PyTorch's own viewer (pytorch.org/memory_viz): a pickle such as `torch.cuda.memory._dump_snapshot` writes.

The viewer reads `segments` (memory as it is at the end) and `device_traces` (what was allocated and freed, in order).
The arena is one segment; eviction is a free and rematerialization an allocation, each with the op as its frame.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

from remint.results.block_log import AWAY, Rectangle
from remint.results.run import Run

# The viewer takes address 0 for "none".
_BASE = 1 << 32


def write_snapshot(path: str | os.PathLike[str], run: Run) -> None:
    """Write the blocks of `run`, which was made with `blocks=True`, for PyTorch's memory viewer."""
    Path(path).write_bytes(pickle.dumps(snapshot(run), protocol=4))


def snapshot(run: Run) -> dict[str, Any]:
    """Return what the viewer reads.

    >>> from remint import generators, simulate
    >>> run = simulate(generators.chain(8), budget="50%", memory="arena", blocks=True)
    >>> sorted(snapshot(run))
    ['allocator_settings', 'device_traces', 'segments']
    """
    if run.blocks is None:
        raise ValueError("the run has no blocks to show: simulate it with blocks=True and memory='arena'")
    labels = run.blocks.labels
    rectangles = [r for r in run.blocks.rectangles() if r.kind not in AWAY]

    def frames(r: Rectangle) -> list[dict[str, Any]]:
        name, source = labels[r.label] if r.label >= 0 else ("scratch", "")
        file, _, line = source.rpartition(":")
        number = int(line) if line.isdigit() else 0
        return [{"filename": file or source or "??", "line": number, "name": f"{name} ({r.kind})"}]

    def entry(action: str, r: Rectangle, seconds: float) -> dict[str, Any]:
        return {
            "action": action,
            "addr": _BASE + r.address,
            "size": r.nbytes,
            "stream": 0,
            "time_us": round(seconds * 1e6),
            "frames": frames(r),
        }

    moments: list[tuple[float, int, str, Rectangle]] = []
    for r in rectangles:
        moments.append((r.begin, 1, "alloc", r))
        if r.ending != "end":
            # At one moment, what ends goes before what begins.
            moments.append((r.end, 0, "free_requested", r))
            moments.append((r.end, 0, "free_completed", r))
    moments.sort(key=lambda moment: moment[:2])
    trace = [entry(action, r, seconds) for seconds, _, action, r in moments]
    return {
        "segments": [_segment(run, [r for r in rectangles if r.ending == "end"], frames)],
        "device_traces": [trace],
        "allocator_settings": {},
    }


def _segment(run: Run, live: list[Rectangle], frames: Any) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    at = 0

    def block(state: str, address: int, nbytes: int, where: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "address": _BASE + address,
            "size": nbytes,
            "requested_size": nbytes,
            "state": state,
            "frames": where,
        }

    for r in sorted(live, key=lambda r: r.address):
        if r.address > at:
            blocks.append(block("inactive", at, r.address - at, []))
        blocks.append(block("active_allocated", r.address, r.nbytes, frames(r)))
        at = r.address + r.nbytes
    if at < run.budget_bytes:
        blocks.append(block("inactive", at, run.budget_bytes - at, []))
    used = sum(r.nbytes for r in live)
    return {
        "device": 0,
        "address": _BASE,
        "total_size": run.budget_bytes,
        "allocated_size": used,
        "active_size": used,
        "requested_size": used,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }
