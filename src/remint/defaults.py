"""Defaults that budgets, `fit` and all commands share, so that a simulation answers for a run."""

from __future__ import annotations

from typing import Final, Literal

# Chooses what is evicted.
POLICY: Final = "coop"
# Of simulations: blocks have addresses, as in a run.
MEMORY: Final[Literal["ideal", "arena"]] = "arena"
# A run ends when a step takes more than this many times its own time.
MAX_SLOWDOWN: Final = 10.0
