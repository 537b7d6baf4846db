"""Lightning's Trainer in a budget: `Trainer(callbacks=[Budget("2GiB")])`."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback  # type: ignore[import-not-found, import-untyped, unused-ignore]

from remint.integrations.loggers import log_step
from remint.runtime.budget import budget
from remint.runtime.live_run import LiveRun


class Budget(Callback):  # type: ignore[misc, unused-ignore]
    """Open a budget when training begins, and close it when it ends or fails; `options` are those of `remint.budget`.

    `run` has the figures: live while it trains, final after it. The figures of each step go to the trainer's loggers,
    as often as the trainer logs. The model is made before, so its weights do not count.
    """

    def __init__(self, nbytes: int | str, **options: Any) -> None:
        super().__init__()
        self._budget = budget(nbytes, **options)
        self._open = False
        self.run: LiveRun | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the budget."""
        self._close(None)
        self.run = self._budget.__enter__()
        self._open = True

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Write the figures of the steps since the last time."""
        if self._open and self.run is not None and (trainer.global_step + 1) % trainer.log_every_n_steps == 0:
            for logger in trainer.loggers:
                log_step(self.run, logger, trainer.global_step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the budget."""
        self._close(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the budget."""
        self._close(exception)

    def _close(self, error: BaseException | None) -> None:
        if self._open:
            self._open = False
            self._budget.__exit__(type(error) if error else None, error, None)
