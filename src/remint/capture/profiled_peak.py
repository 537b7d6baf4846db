"""The most bytes that PyTorch's allocator had given out at once, from what its profiler saw.

Every allocation comes with the sum of all that are out. Adding them up in the order of their times would be wrong where
a thread changes cores whose clocks differ.
"""

from __future__ import annotations

from typing import Any

import torch


def peak_bytes(profile: torch.profiler.profile) -> int:
    """Return the peak of what ran under a profiler with `profile_memory=True`, above what was there before.

    >>> with torch.profiler.profile(profile_memory=True) as profile:
    ...     a = torch.empty(1000)
    ...     b = torch.empty(2000)
    ...     del a, b
    ...     c = torch.empty(1500)
    >>> peak_bytes(profile)
    12000
    """
    waiting: list[Any] = profile.profiler.kineto_results.experimental_event_tree()  # type: ignore[union-attr]
    waiting = sorted(waiting, key=lambda node: -node.start_time_ns)
    allocations = []
    while waiting:
        node = waiting.pop()
        if node.name == "[memory]":
            allocations.append(node.extra_fields)
        waiting.extend(reversed(node.children))
    if not allocations:
        return 0
    before: int = allocations[0].total_allocated - allocations[0].alloc_size
    peak: int = max(allocation.total_allocated for allocation in allocations)
    return max(0, peak - before)
