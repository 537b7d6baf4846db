"""The steps of a script: they end where its optimizer steps, and after enough of them the script is stopped."""

from __future__ import annotations

from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from remint.advice.watch import Watch
from remint.errors import BudgetError


class Enough(SystemExit):
    """Ends the script. Its own `finally` blocks run."""


class script_steps:  # noqa: N801 (used like a function: `with script_steps(watch)`)
    """Tell `watch` where the steps of the code inside end, and stop it by `Enough`."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._first: Optimizer | None = None

    def __enter__(self) -> None:
        self._handle = register_optimizer_step_post_hook(self._stepped)

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self._handle.remove()
        self._watch.close(error if isinstance(error, BudgetError) else None)

    def _stepped(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        # A program with several optimizers has made a step when the first one comes again.
        if self._first is None:
            self._first = optimizer
        if optimizer is not self._first:
            return
        self._watch.step_ended()
        if self._watch.done:
            raise Enough(0)
