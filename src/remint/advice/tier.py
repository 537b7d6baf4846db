"""The tier that advice is asked about: how much it holds, and how quick it is."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from remint.offload import Offload, parse_offload, sized
from remint.runtime.budget import budget
from remint.units import budget_text


@dataclass(frozen=True)
class Tier:
    """A tier of the CPU, whose speed was measured unless it was given."""

    text: str
    """As `--offload` takes it."""
    measured: Offload

    @classmethod
    def of(cls, offload: Offload | int | str | os.PathLike[str]) -> Tier:
        """Open the tier once, to see that it works and how quick it is."""
        parsed = parse_offload(offload)
        assert parsed is not None
        with budget("1MiB", device="cpu", offload=parsed, learn=False) as run:
            bandwidth = run.offload_bandwidth
        text = str(offload)
        if isinstance(offload, Offload):
            text = budget_text(int(offload.bytes)) if offload.bytes is not None else str(offload.path or "disk")
        return cls(text, replace(parsed, bytes=sized(parsed), bandwidth=bandwidth))
