from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import torch

from remint.results.block_log import Columns as BlockColumns

torch_version: str

class Figures(TypedDict):
    budget_bytes: int
    peak_bytes: int
    used_bytes: int
    pinned_bytes: int
    min_budget_bytes: int
    spilled_bytes: int
    outside_bytes: int
    num_ops: int
    num_evictions: int
    num_frees: int
    num_rematerializations: int
    num_searches: int
    num_scores: int
    num_storages: int
    computed_ns: int
    rematerialized_ns: int
    search_ns: int
    bookkeeping_ns: int
    collective_ns: int
    moved_bytes: int
    num_offloads: int
    num_clean_offloads: int
    num_fetches: int
    offloaded_bytes: int
    fetched_bytes: int
    transfer_ns: int
    tier_peak_bytes: int
    tier_used_bytes: int
    tier_bandwidth: float
    transfer_wall_ns: int
    unusable_bytes: float

class LearningFigures(TypedDict):
    greedy: tuple[int, int, int, int]
    learned: tuple[int, int, int, int]
    planned: tuple[int, int, int, int]
    predicted: tuple[int, int, int, int, int]
    measured: tuple[int, int, int, int, int]
    num_plans: int
    planning: bool
    num_departures: int
    last_departure: str
    num_known_steps: int
    known_bytes: int
    tier_use: str
    num_asleep_steps: int
    num_wakes: int
    last_wake: str

class Columns(TypedDict):
    kinds: npt.NDArray[np.uint8]
    nanoseconds: npt.NDArray[np.int64]
    signatures: npt.NDArray[np.uint64]
    name_ids: npt.NDArray[np.int32]
    names: list[str]
    source_ids: npt.NDArray[np.int32]
    sources: list[str]
    arg_offsets: npt.NDArray[np.int64]
    args: npt.NDArray[np.int32]
    effects: npt.NDArray[np.uint8]
    out_offsets: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]
    aliases: npt.NDArray[np.int32]
    request_offsets: npt.NDArray[np.int64]
    request_bytes: npt.NDArray[np.int64]
    request_outputs: npt.NDArray[np.int32]

class Session:
    def __init__(
        self,
        *,
        budget: int,
        device: str,
        chaos: bool,
        spill: bool,
        soft: bool,
        timeline: bool,
        events: bool,
        blocks: bool,
        record: bool,
        source_lines: bool,
        learn: bool,
        several: bool,
        sleep: bool,
        max_slowdown: float,
        partner: Session | None,
        planner: list[str],
        offload_folder: str,
        measure_bandwidth: bool,
        **options: Any,  # remint.engine_options.EngineOptions
    ) -> None: ...
    @property
    def device(self) -> str: ...
    def enter(self, partners: list[Session] = ...) -> None: ...
    def leave(self) -> None: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    def step(self) -> None: ...
    def learning(self) -> LearningFigures: ...
    def figures(self) -> Figures: ...
    def budget_for(self, max_slowdown: float) -> int: ...
    def by_operator(self) -> list[tuple[str, str, str, int, int, list[tuple[str, int]]]]: ...
    def block_log(self) -> tuple[BlockColumns, npt.NDArray[np.uint64], list[tuple[str, str]], list[str]]: ...
    def timeline(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]: ...
    def events(self) -> str: ...
    def recorded(self) -> Columns | None: ...
    def pinned_by(self) -> list[tuple[str, int]]: ...
    def check(self) -> None: ...
    def set_costs(self, nanoseconds: list[int], nbytes: list[int]) -> None: ...

def enter_module(path: str) -> None: ...
def inside() -> bool: ...
def materialize(tensor: torch.Tensor) -> None: ...
def pin(tensor: torch.Tensor, *, asked: bool) -> None: ...
def before_write(tensor: torch.Tensor) -> None: ...
def before_resize(storage: torch.UntypedStorage, nbytes: int) -> None: ...
def is_resident(tensor: torch.Tensor) -> bool: ...
def evict(tensor: torch.Tensor) -> bool: ...
def without_tag(tensor: torch.Tensor) -> torch.Tensor: ...
def operator_facts(name: str, overload: str = "") -> dict[str, Any]: ...

class ReadLock:
    def __init__(self, tensor: torch.Tensor) -> None: ...
    def release(self) -> None: ...

def hide(hidden: bool) -> bool: ...
def step_ends() -> None: ...
def waited_for_ranks(took: int) -> None: ...
