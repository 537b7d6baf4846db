"""How much memory of a device is free: what a budget of `"auto"` is made of."""

from __future__ import annotations

from pathlib import Path

from remint.runtime.rank import ranks_on_this_machine

# The rest is for what no budget counts: the interpreter, libraries, other processes that grow.
PART = 0.9

_CONTROL_GROUP = Path("/sys/fs/cgroup")


def automatic_budget(device: str) -> int:
    """Return the bytes of a budget of `"auto"` on the device: what is free now, less a tenth.

    The ranks on one machine share it.
    """
    return int(PART * free_bytes(device) / ranks_on_this_machine())


def free_bytes(device: str) -> int:
    """Return how many bytes of the device are free now: for the CPU, what the system and the container allow."""
    if device != "cpu":
        raise ValueError(f'budget "auto" is known for the CPU only, not for {device!r}: give bytes, such as "2GiB"')
    lines = Path("/proc/meminfo").read_text().splitlines()
    (available,) = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    limit, used = (_number(_CONTROL_GROUP / name) for name in ("memory.max", "memory.current"))
    if limit is not None and used is not None:
        available = min(available, max(0, limit - used))
    return available


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None  # no control group, or no limit ("max")
