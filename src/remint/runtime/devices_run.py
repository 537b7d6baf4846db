"""The `run` of a budget of several devices."""

from __future__ import annotations

from collections import Counter
from typing import Any

from remint.results.block_log import BlockLog
from remint.results.learning import Learning
from remint.results.run import Rematerialized, Timeline
from remint.runtime.live_run import LiveRun


class DevicesRun(LiveRun):
    """The figures of all devices together: bytes, counts and times are sums. `devices` has those of each device."""

    def __init__(self, devices: dict[str, LiveRun], *, policy: str) -> None:
        super().__init__(next(iter(devices.values()))._session, policy=policy)
        self.devices = devices

    def _failed(self, error: BaseException | None) -> None:
        super()._failed(error)
        for run in self.devices.values():
            run._failed(error)

    def _figure(self, name: str) -> Any:
        return sum(run._figure(name) for run in self.devices.values())

    @property
    def fragmentation(self) -> float:
        """The largest of all devices."""
        return max(run.fragmentation for run in self.devices.values())

    @property
    def timeline(self) -> Timeline | None:
        """None: each device has its own, `run.devices[name].timeline`."""
        return None

    @property
    def events(self) -> tuple[str, ...] | None:
        """None: each device has its own, `run.devices[name].events`."""
        return None

    @property
    def blocks(self) -> BlockLog | None:
        """None: each device has its own, `run.devices[name].blocks`."""
        return None

    @property
    def learning(self) -> Learning:
        """That of the device whose ops took longest. Each device learns its own part of a step."""
        return max(self.devices.values(), key=lambda run: run.computed_seconds).learning

    def budget_for(self, max_slowdown: float) -> int | None:
        """None: each device has its own, `run.devices[name].budget_for(…)`."""
        return None

    def step(self) -> None:
        """Say that a step of the program ends here, on all devices."""
        for run in self.devices.values():
            run.step()

    def by_op(self) -> list[Rematerialized]:
        """Return which operators were recomputed on any device, the most expensive first."""
        return sorted((row for run in self.devices.values() for row in run.by_op()), key=lambda row: -row.seconds)

    def pinned_by(self) -> list[tuple[str, int]]:
        """Return why bytes are pinned now, and how many on all devices, the most first."""
        total: Counter[str] = Counter()
        for run in self.devices.values():
            total.update(dict(run.pinned_by()))
        return total.most_common()

    def __str__(self) -> str:
        return "\n".join(f"{name}: {run}" for name, run in self.devices.items())
