"""The steps of a script: they end where its optimizer steps, and after enough of them the script is stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook


class Enough(SystemExit):
    """Ends the script. Its own `finally` blocks run."""


class script_steps:  # noqa: N801 (used like a function: `with script_steps(ended)`)
    """Call `step_ended` where the steps of the code inside end, and stop the code by `Enough` when it returns True."""

    def __init__(self, step_ended: Callable[[], bool]) -> None:
        self._step_ended = step_ended
        self._first: Optimizer | None = None

    def __enter__(self) -> None:
        self._handle = register_optimizer_step_post_hook(self._stepped)

    def __exit__(self, *error: object) -> None:
        self._handle.remove()

    def _stepped(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        # A program with several optimizers has made a step when the first one comes again.
        if self._first is None:
            self._first = optimizer
        if optimizer is self._first and self._step_ended():
            raise Enough(0)
