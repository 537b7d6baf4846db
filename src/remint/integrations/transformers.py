"""Hugging Face's Trainer in a budget: `Trainer(..., callbacks=[BudgetCallback("2GiB")])`."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback  # type: ignore[import-not-found, import-untyped, unused-ignore]

from remint.integrations.loggers import log_step
from remint.runtime.budget import budget
from remint.runtime.live_run import LiveRun


class BudgetCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Open a budget when training begins, and close it when training ends; `options` are those of `remint.budget`.

    `run` has the figures: live while it trains, final after it. When the trainer logs, the figures of the steps since
    the last time go to `trainer.state.log_history`, and to `writer`, if there is one (see `log_step`). The model is
    made before, so its weights do not count. Evaluation during training is inside.

    The Trainer tells its callbacks nothing about errors. If training fails, the budget stays open until `close` is
    called, or the callback is used again: `with BudgetCallback("2GiB") as callback` closes it in any case.
    """

    def __init__(self, nbytes: int | str, *, writer: Any = None, **options: Any) -> None:
        self._writer = writer
        self._budget = budget(nbytes, **options)
        self._open = False
        self.run: LiveRun | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the budget."""
        self.close()
        self.run = self._budget.__enter__()
        self._open = True

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add the figures to what was logged."""
        if self._open and self.run is not None:
            figures = log_step(self.run, self._writer or _nowhere, state.global_step)
            if state.log_history:
                state.log_history[-1].update(figures)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the budget."""
        self.close()

    def close(self, error: BaseException | None = None) -> None:
        """Close the budget, if it is open."""
        if self._open:
            self._open = False
            self._budget.__exit__(type(error) if error else None, error, None)

    def __enter__(self) -> BudgetCallback:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.close(error)


def _nowhere(figures: dict[str, float], step: int) -> None:
    """Write nothing."""
