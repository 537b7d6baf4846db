"""The options of the engine: one type, with one set of defaults, for simulations and for real runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from remint import _core

Deallocation = Literal["ignore", "lazy", "eager", "banish"]


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What a caller can choose. `None` leaves it to the engine, which knows the memory and the policy."""

    policy: str
    """Who is evicted: see `remint.policy_names()`."""
    deallocation: Deallocation = "eager"
    """What happens to bytes when the program drops its last reference to them."""
    partition: bool | None = None
    """Cheap and expensive bytes at two ends of the arena. None: what the policy's authors do, so with `coop` only."""
    moving: bool | None = None
    """Blocks may be moved together where no free block is large enough. None: on the arena."""
    ignore_small: float = 0.0
    """Pass over candidates smaller than this fraction of their mean size."""
    time_exponent: float = 1.0
    """How much the time until a value is needed counts in the scores of `clairvoyant`."""
    sample: bool = False
    """Score only sqrt(n) candidates drawn at random."""
    seed: int = 0
    """For `random` and `sample`."""
    max_depth: int | None = None
    """Pin a value that would take a longer chain of ops than this to rematerialize. None: 10,000 on the arena."""
    max_rematerialized_ns: int | None = None
    """A run that spends more on rematerialization ends as `thrash`. None: no limit."""
    tier_bytes: int = 0
    """The size of the tier below the memory: see `remint.Offload`. 0: there is none."""
    tier_bandwidth: float = 1e9
    """Bytes per second, each way."""
    tier_latency_ns: int = 0
    """What each transfer takes besides."""
    tier_alignment: int = 4096
    """Copies in the tier take multiples of it."""
    tier_use: str = "either"
    """What leaves for the tier: see `remint.Offload`."""
    check: bool = False
    """Check the engine's books after every op. Slow; for tests."""

    def __post_init__(self) -> None:
        if self.policy not in _core.policy_names():
            raise ValueError(f"there is no policy {self.policy!r}; the policies are {', '.join(_core.policy_names())}")
        if self.deallocation not in get_args(Deallocation):
            choices = ", ".join(map(repr, get_args(Deallocation)))
            raise ValueError(f"deallocation is one of {choices}, not {self.deallocation!r}")
        if not 0 <= self.ignore_small <= 1:
            raise ValueError(f"ignore_small is a fraction of the mean size, 0 to 1, not {self.ignore_small}")

    def keywords(self) -> dict[str, Any]:
        """Return the options as the compiled modules take them."""
        return asdict(self)
