"""Tier: a second memory that a plan may copy values to, and when its transfers run.

Transfers run beside compute, one at a time, in the order of the plan. Ops run one after the other. An op waits for
what it reads to arrive; a value that leaves is freed when its copy is whole; nothing else waits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from remint.units import parse_budget


@dataclass(frozen=True, kw_only=True)
class Tier:
    """A second memory of so many bytes, and how quickly it is written and read.

    >>> Tier(bytes="16GiB", bandwidth="2GB").seconds(10**9)
    0.5
    """

    bytes: int | str
    """What its copies may take at once."""
    bandwidth: float | str
    """Bytes per second. One transfer runs at a time, there or back."""
    latency: float = 0.0
    """Seconds that each transfer takes besides."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes", parse_budget(self.bytes))
        bandwidth = parse_budget(self.bandwidth) if isinstance(self.bandwidth, str) else self.bandwidth
        if not (math.isfinite(bandwidth) and bandwidth > 0):
            raise ValueError(f"a bandwidth is more than 0 bytes per second, not {self.bandwidth!r}")
        object.__setattr__(self, "bandwidth", bandwidth)
        if not (math.isfinite(self.latency) and self.latency >= 0):
            raise ValueError(f"latency is in seconds, 0 or more, not {self.latency!r}")

    @property
    def capacity(self) -> int:
        """The bytes as a number."""
        return int(self.bytes)

    def seconds(self, nbytes: int) -> float:
        """How long so many bytes take to get there, or back."""
        return self.latency + nbytes / float(self.bandwidth)

    def to_json(self) -> dict[str, Any]:
        """Return the tier as plain data."""
        return {"bytes": self.bytes, "bandwidth": self.bandwidth, "latency": self.latency}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Tier:
        """Make a tier of what `to_json` returned."""
        return cls(bytes=data["bytes"], bandwidth=data["bandwidth"], latency=data["latency"])


class Transfers:
    """The clock of a plan that is replayed step by step, and what its tier holds."""

    def __init__(self, tier: Tier | None) -> None:
        self.tier = tier
        self.waits: list[float] = []  # of ops and frees, for transfers
        self.used = self.peak = 0
        self.now = 0.0
        self._idle_at = 0.0  # when all transfers so far have ended
        self._written: dict[str, float] = {}  # when the last copy of a value is whole
        self._arrives: dict[str, float] = {}
        self._copies: dict[str, int] = {}  # to how many fetches a copy still serves

    def compute(self, seconds: float) -> None:
        """An op runs."""
        self.now += seconds

    def read(self, value: str) -> None:
        """An op, or the end of the step, needs the value to be there."""
        self._wait(self._arrives.pop(value, 0.0))

    def free(self, value: str) -> None:
        """The bytes of the value go, or are overwritten."""
        self._wait(self._arrives.pop(value, 0.0))
        self._wait(self._written.get(value, 0.0))

    def offload(self, value: str, nbytes: int, fetches: int) -> None:
        """The value is copied there, for that many fetches. Raises a `ValueError` if that is wrong."""
        tier = self._tier(value)
        if fetches == 0:
            raise ValueError(f"{value!r} is offloaded and never fetched: leave that out")
        self._wait(self._arrives.pop(value, 0.0))
        self.used += nbytes
        self.peak = max(self.peak, self.used)
        if self.used > tier.capacity:
            raise ValueError(f"{value!r} is offloaded to a tier of {tier.capacity} B, which would hold {self.used} B")
        self._copies[value] = fetches
        self._written[value] = self._start(nbytes)

    def fetch(self, value: str, nbytes: int) -> None:
        """The value is copied back. Raises a `ValueError` if there is no copy."""
        self._tier(value)
        if value not in self._copies:
            raise ValueError(f"{value!r} is fetched, and the tier has no copy of it")
        self._arrives[value] = self._start(nbytes)
        self._copies[value] -= 1
        if self._copies[value] == 0:
            # Whatever takes its place is written after this transfer.
            del self._copies[value]
            self.used -= nbytes

    def _start(self, nbytes: int) -> float:
        assert self.tier is not None
        self._idle_at = max(self._idle_at, self.now) + self.tier.seconds(nbytes)
        return self._idle_at

    def _wait(self, until: float) -> None:
        if until > self.now:
            self.waits.append(until - self.now)
            self.now = until

    def _tier(self, value: str) -> Tier:
        if self.tier is None:
            raise ValueError(f"{value!r} is moved to or from a tier, and the plan has none")
        return self.tier
