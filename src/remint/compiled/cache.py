"""Plans and measured costs on disk, so that a second start is quick.

A plan is found by a hash of what was planned: the graph, its costs to two digits, the budget, the planner and its
options, the devices, and the versions of torch and of this file. Costs are found by what they were measured on: the
machine, its devices, the number of threads and the version of torch. So a second start asks for the plan of the same
costs.
"""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import torch

from remint.capture.costs import Cost
from remint.file_cache import FileCache
from remint.graph import Graph, Plan, verify

# Raise it when planners or the meaning of a graph change.
VERSION = 3
MAX_BYTES = 1 << 30


class Cache:
    """A directory of plans and costs; `None` keeps nothing."""

    def __init__(self, directory: str | Path | bool | None) -> None:
        self.directory: Path | None = None
        if directory is None or directory is True:
            from torch._inductor.runtime.cache_dir_utils import cache_dir

            self.directory = Path(cache_dir()) / "remint"
        elif directory is not False:
            self.directory = Path(directory)
        self._files = FileCache(self.directory, max_bytes=MAX_BYTES)

    def costs(self) -> dict[str, Cost]:
        """Return what was measured on this machine, by signature."""
        data = self._read(self._costs_name())
        return {key: Cost(*cost) for key, cost in (data or {}).items()}

    def keep_costs(self, costs: dict[str, Cost]) -> None:
        """Add to what was measured; another process may have added to it, too."""
        self._write(self._costs_name(), {**self.costs(), **costs})

    def plan(self, graph: Graph, budget: int, key: tuple[Any, ...]) -> Plan | None:
        """Return the plan that was kept for this question, checked anew."""
        data = self._read(self._plan_name(graph, budget, key))
        if data is None:
            return None
        try:
            kept = Plan.from_json(data)
            about: dict[str, Any] = {"bound": kept.bound, "planner": kept.planner, "seconds": kept.seconds}
            if kept.tier is None:
                plan = Plan.from_sequence(graph, kept.sequence, **about)
            else:
                plan = Plan.from_steps(graph, kept.steps, tier=kept.tier, **about)
            verify(graph, plan, budget)
        except (ValueError, KeyError, IndexError, RuntimeError):
            return None  # damaged, or of another version: it is planned again
        return plan

    def keep_plan(self, plan: Plan, budget: int, key: tuple[Any, ...]) -> None:
        """Keep a plan for the question that it answers."""
        self._write(self._plan_name(plan.graph, budget, key), plan.to_json())

    def _plan_name(self, graph: Graph, budget: int, key: tuple[Any, ...]) -> str:
        data = graph.to_json()
        for op in data["ops"]:
            op["cost"] = f"{op['cost']:.1e}"
            op.pop("source", None)
        text = json.dumps([VERSION, torch.__version__, devices(), data, budget, *key], sort_keys=True)
        return f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.plan"

    def _costs_name(self) -> str:
        where = [VERSION, platform.node(), platform.machine(), torch.get_num_threads(), torch.__version__, devices()]
        return f"costs-{hashlib.sha256(repr(where).encode()).hexdigest()[:16]}.json"

    def _read(self, name: str) -> Any:
        try:
            return json.loads(self._files.read(name) or b"null")
        except ValueError:
            return None

    def _write(self, name: str, data: Any) -> None:
        self._files.write(name, json.dumps(data).encode())


def devices() -> list[str]:
    """Return the devices that a model of this process can be on: what decides which kernels run, and how fast."""
    found = [f"cpu {torch.backends.cpu.get_cpu_capability()}"]
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None:
        # Not every backend that registers a device can tell the name of its hardware.
        name = getattr(torch.get_device_module(accelerator), "get_device_name", lambda _: "")
        found += [f"{accelerator.type}:{place} {name(place)}" for place in range(torch.accelerator.device_count())]
    return found
