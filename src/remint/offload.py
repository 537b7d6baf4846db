"""Offload: memory below the budget's own, for tensors that are slower to recompute than to fetch."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from remint.units import parse_budget

TierUse = Literal["either", "recompute", "offload"]

_ASSUMED_BANDWIDTH = 1e9


@dataclass(frozen=True, kw_only=True)
class Offload:
    """A second tier under a budget: where tensors go that are not worth recomputing, or cannot be recomputed.

    >>> Offload(bytes="16GiB").bytes, Offload(bytes="16GiB", bandwidth="2GB").bandwidth
    (17179869184, 2000000000)
    """

    bytes: int | str | None = None
    """What the tier holds, copies of resident tensors included. None: nine tenths of the free disk."""
    path: str | os.PathLike[str] | None = None
    """The folder of the file. None: `TMPDIR` if it is set, else `/var/tmp`, which is on a disk."""
    bandwidth: float | str | None = None
    """Bytes per second, each way. None: measured when the budget is opened, and again with every transfer.

    A simulation, which measures nothing, takes 1 GB/s.
    """
    latency: float = 2e-5
    """Seconds that each transfer takes besides."""
    use: TierUse = "either"
    """What happens to tensors that can be recomputed: whatever is quicker, always recomputed, or always offloaded.

    With `"either"`, a program whose steps are learned goes on with the one of the three that loses least on its steps.
    """

    def __post_init__(self) -> None:
        if self.bytes is not None:
            nbytes = parse_budget(self.bytes)
            if nbytes <= 0:
                raise ValueError("offload= of 0 bytes holds nothing: give more, or leave it out")
            object.__setattr__(self, "bytes", nbytes)
        if self.bandwidth is not None:
            bandwidth = parse_budget(self.bandwidth)
            if bandwidth <= 0:
                raise ValueError(f"a bandwidth is more than 0 bytes per second, not {self.bandwidth!r}")
            object.__setattr__(self, "bandwidth", bandwidth)
        if not 0 <= self.latency < 1e3:
            raise ValueError(f"latency is in seconds, 0 or more, not {self.latency!r}")
        if self.use not in get_args(TierUse):
            raise ValueError(f"use is one of {', '.join(map(repr, get_args(TierUse)))}, not {self.use!r}")

    def folder(self) -> Path:
        """Return the folder that the file is in. Raises a `ValueError` if there is none."""
        if self.path is not None:
            folder = Path(self.path)
        elif os.environ.get("TMPDIR") or not os.access("/var/tmp", os.W_OK):
            folder = Path(tempfile.gettempdir())
        else:
            folder = Path("/var/tmp")
        if not folder.is_dir():
            raise ValueError(f"offload= names the folder {str(folder)!r}, and there is none: make it, or name another")
        return folder

    def keywords(self) -> dict[str, Any]:
        """Return the tier as the compiled modules take it. The size must be known."""
        return {
            "tier_bytes": self.bytes,
            "tier_bandwidth": float(self.bandwidth or _ASSUMED_BANDWIDTH),
            "tier_latency_ns": round(self.latency * 1e9),
            "tier_use": self.use,
        }


def parse_offload(offload: Offload | int | str | os.PathLike[str] | None) -> Offload | None:
    """Return what `offload=` means: bytes, `"disk"`, a folder, or an `Offload`.

    >>> parse_offload("1GiB").bytes, str(parse_offload("/tmp").path), parse_offload(None)
    (1073741824, '/tmp', None)
    """
    if offload is None or isinstance(offload, Offload):
        return offload
    if offload == "disk":
        return Offload()
    if isinstance(offload, os.PathLike) or (isinstance(offload, str) and os.sep in offload):
        return Offload(path=offload)
    try:
        return Offload(bytes=offload)
    except ValueError as error:
        if isinstance(offload, str) and not any(character.isdigit() for character in offload):
            raise ValueError(
                f'offload={offload!r} is not understood: give bytes ("16GiB"), "disk", a folder ("/scratch"), or a '
                "remint.Offload"
            ) from error
        raise


def sized(offload: Offload) -> int:
    """Return the bytes of a tier in a file: those that were given, or nine tenths of the free disk."""
    if offload.bytes is not None:
        return int(offload.bytes)
    return shutil.disk_usage(offload.folder()).free * 9 // 10
