"""A simulation that grows op by op."""

from __future__ import annotations

from collections.abc import Callable

from remint import _core
from remint.trace import TraceBuilder


class Driver:
    """A simulation on the arena that grows op by op, with what a kernel does inside given per op."""

    def __init__(self, budget: int, **options: object) -> None:
        self.builder = TraceBuilder()
        self.simulation = _core.Simulation(
            budget=budget, arena=True, ghosts=True, events=True, **{"policy": "lru", "check": True, **options}
        )
        self.inside: Callable[[], None] | None = None
        self.calls = 0
        self.simulation.set_kernel_hook(self._hook)

    def _hook(self, event: int) -> None:
        self.calls += 1
        if self.inside is not None:
            inside, self.inside = self.inside, None
            inside()

    def call(self, args: list[int], sizes: list[int], inside: Callable[[], None] | None = None) -> list[int]:
        self.inside = inside
        made = list(self.builder.call("op", args, sizes, 1e-6))
        self.advance()
        return made

    def mutate(self, args: list[int], written: list[int], inside: Callable[[], None] | None = None) -> list[int]:
        self.inside = inside
        made = list(self.builder.mutate("op_", args, written, 1e-6))
        self.advance()
        return made

    def release(self, tensor: int) -> None:
        self.builder.release(tensor)
        self.advance()

    def advance(self) -> None:
        assert self.simulation.advance(self.builder.build(), finish=False) == "ok"
        self.simulation.check()
