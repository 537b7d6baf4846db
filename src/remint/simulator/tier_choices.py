"""What a training step costs in each budget with a second tier of memory below it.

A tier takes what cannot be recomputed, too. So what the program made before the recorded steps, such as weights and
the state of the optimizer, is not only counted: it is there in the simulation, and can be offloaded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from remint._core import CPU_ALIGNMENT
from remint.offload import Offload
from remint.simulator.budget_choices import MARGIN, MeasuredSteps, simulated_greedy
from remint.trace import Trace
from remint.trace.events import CONSTANT, ELSEWHERE, FRESH, MARK
from remint.trace.last_step import constants_first
from remint.units import format_bytes

# Tensors found in the recorded steps stand for those that the program holds if the bytes are the same, but for this.
MOST_MISSED = 0.05


@dataclass(frozen=True, kw_only=True)
class TierSteps:
    """Recorded steps with a tier."""

    steps: MeasuredSteps
    tier: Offload
    trace: Trace
    """Of the last step if that is known, with the tensors made before that count in the budget; else of all steps."""
    num_steps: int
    beside_bytes: int
    """What counts in the budget, and is not in the trace: it stays in memory."""

    @classmethod
    def of(cls, steps: MeasuredSteps, tier: Offload, *, is_script: bool) -> TierSteps:
        """Count all tensors from before in a script; in a loop with its model outside, the state of the optimizer."""
        trace = steps.last
        chosen = None if trace is None else trace.aliases == ELSEWHERE
        if trace is not None and chosen is not None and not is_script:
            chosen &= _first_seen_after_backward(trace)
        found = 0 if trace is None else int((-(-trace.nbytes[chosen] // CPU_ALIGNMENT)).sum()) * CPU_ALIGNMENT
        if trace is None or chosen is None or found > (1 + MOST_MISSED) * steps.beside_bytes:
            # Other tensors are among them, and it is not known which.
            return cls(
                steps=steps,
                tier=tier,
                trace=steps.trace,
                num_steps=steps.num_steps,
                beside_bytes=steps.beside_bytes,
            )
        aliases = np.where(chosen, FRESH, trace.aliases).astype(trace.aliases.dtype)
        # Another step follows: nothing has to be resident at the end. And one came before: what it left is in the way
        # from the beginning, or in the tier.
        counted = constants_first(replace(trace, aliases=aliases, held=trace.held[:0]))
        return cls(steps=steps, tier=tier, trace=counted, num_steps=1, beside_bytes=max(0, steps.beside_bytes - found))

    def min_budget(self) -> tuple[int, str]:
        """Return a lower bound and its reason: what one op makes, and reads of what ops made, is needed at once."""
        constants = np.zeros(self.trace.num_tensors, bool)
        constants[self.trace.out_offsets[:-1][self.trace.kinds == CONSTANT]] = True
        aliases = np.where(constants, ELSEWHERE, self.trace.aliases).astype(self.trace.aliases.dtype)
        made = replace(self.trace, aliases=aliases)
        op = made.names[made.name_ids[made.min_budget_event]] if made.num_events else "nothing"
        beside = f", beside {format_bytes(self.beside_bytes)} that stay" if self.beside_bytes else ""
        reason = f"{op} needs {format_bytes(made.min_budget_bytes)} at once, whatever is offloaded{beside}"
        return made.min_budget_bytes + self.beside_bytes, reason

    def slowdown(self, budget_bytes: int) -> float | None:
        """Return how many times longer a step takes in the budget; None if it does not fit."""
        inside = int((budget_bytes - self.beside_bytes) * (1 - MARGIN))
        if inside <= 0:
            return None
        run = simulated_greedy(self.trace, inside, self.tier)
        if run.status != "ok":
            return None
        # To note an eviction or a transfer takes about as long as to note an op.
        around = (2 * run.num_rematerializations + run.num_offloads + run.num_fetches) * self.steps.bookkeeping_seconds
        recomputed = self.steps.scale * (run.rematerialized_seconds + run.search_seconds + around)
        more = (recomputed + run.transfer_seconds) / self.num_steps
        return (self.steps.recorded_seconds + more) / self.steps.plain_seconds


def _first_seen_after_backward(trace: Trace) -> npt.NDArray[np.bool_]:
    """Return for each tensor whether the first backward pass had ended before anything used it."""
    marks = np.flatnonzero(trace.kinds == MARK)
    ends = [int(event) for event in marks if trace.names[trace.name_ids[event]] != "backward"]
    first = trace.out_offsets[ends[0]] if ends else trace.num_tensors
    return np.arange(trace.num_tensors) >= first
