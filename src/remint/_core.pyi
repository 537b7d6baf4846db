from typing import Any

import numpy as np
import numpy.typing as npt

from remint.run import Status
from remint.trace import Trace

def policy_names() -> list[str]: ...
def policy_needs_arena(policy: str) -> bool: ...
def cheapest_window(
    blocks: list[tuple[int, float | None, bool]], nbytes: int
) -> tuple[int, int, int, float] | None: ...

class TraceFacts:
    @property
    def peak_bytes(self) -> int: ...
    @property
    def min_budget_bytes(self) -> int: ...
    @property
    def constant_bytes(self) -> int: ...
    @property
    def computed_ns(self) -> int: ...

def trace_facts(trace: Trace) -> TraceFacts: ...

class Deallocation:
    ignore: Deallocation
    eager: Deallocation
    banish: Deallocation

class SimulationOptions:
    budget: int
    policy: str
    arena: bool
    ghosts: bool
    partition: bool
    moving: bool
    deallocation: Deallocation
    max_rematerialized_ns: int
    ignore_small: float
    sample: bool
    seed: int
    check: bool

class Simulation:
    def __init__(self, options: SimulationOptions, *, events: bool = False, timeline: bool = False) -> None: ...
    def advance(self, trace: Trace, *, finish: bool) -> Status: ...
    def is_resident(self, tensor: int) -> bool: ...
    def check(self) -> None: ...
    def statistics(self) -> dict[str, Any]: ...
    def decisions(self) -> str: ...
    def timeline(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]: ...
    def blocks(self) -> list[tuple[int, int, int]]: ...
