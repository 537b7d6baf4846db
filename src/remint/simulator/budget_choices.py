"""What a training step costs under each budget: recorded steps, simulated, with the times that were measured.

A simulation says what is recomputed. How long that makes a step also depends on what remint itself takes, and on
the step without it. Both were measured while the steps were recorded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from remint.results.advice import Choice
from remint.results.run import Run
from remint.simulator.simulate import simulate
from remint.trace import Trace
from remint.trace.events import ELSEWHERE

# The first steps of a budget are greedy. A guard ends them at 100 times their own time: stay well away from it.
MAX_GREEDY_SLOWDOWN = 30.0
MAX_SLOWDOWN = 10.0
# A real arena can be a little worse off than a simulated one: addresses, the first step, the data of the next batch.
MARGIN = 0.02
# How much the time to the next use counts. A budget that learns a step tries them all, too.
TIME_EXPONENTS = (1.0, 0.5, 2.0, 0.25)


@dataclass(frozen=True, kw_only=True)
class MeasuredSteps:
    """Some steps of a program that were recorded, one like the other."""

    trace: Trace
    num_steps: int
    plain_seconds: float
    """Of one step without remint."""
    recorded_seconds: float
    """Of one step while all its ops were seen, as they are in a budget that is short of memory."""
    bookkeeping_seconds: float = 0.0
    """Of one op, around it. An eviction takes about as long, a replay twice."""
    busy: float = 1.0
    """Seconds of `plain_seconds` per second of the trace: on a busy machine, kernels wait for a core."""
    beside_bytes: int = 0
    """Counted in every budget, but not in the trace: what the program made before, and holds."""

    @cached_property
    def peak_bytes(self) -> int:
        """What a step takes without a budget, workspaces included."""
        run = simulate(self.trace, budget=2 * self.trace.peak_bytes + (1 << 20), policy="coop", memory="arena")
        return run.peak_bytes + self.beside_bytes

    @property
    def min_budget_bytes(self) -> int:
        """A proven lower bound: one op's inputs and outputs, or what is held at the end, has to be there at once."""
        return max(self.trace.min_budget_bytes, self.held_bytes) + self.beside_bytes

    @cached_property
    def held_bytes(self) -> int:
        """What the program holds when the steps end: mostly gradients, in a graph also weights."""
        trace = self.trace
        roots = list(range(trace.num_tensors))
        aliases, args = trace.aliases.tolist(), trace.args.tolist()
        begins = np.repeat(trace.arg_offsets[:-1], np.diff(trace.out_offsets)).tolist()
        for tensor, alias in enumerate(aliases):
            if alias >= 0:
                roots[tensor] = roots[args[begins[tensor] + alias]]
        held = {roots[tensor] for tensor in trace.held.tolist()}
        return sum(int(trace.nbytes[root]) for root in held if aliases[root] != ELSEWHERE)


def choice(steps: MeasuredSteps, budget_bytes: int) -> Choice:
    """Return what the budget costs, greedy and once the step is learned; None stands for what does not fit."""
    inside = int((budget_bytes - steps.beside_bytes) * (1 - MARGIN))
    if inside <= 0:
        return Choice(budget_bytes=budget_bytes, greedy=None, learned=None)
    greedy = _run(steps, inside, "coop", MAX_GREEDY_SLOWDOWN)
    # A step is learned from a greedy one. What takes longer than the guard allows does not get that far.
    if greedy.status != "ok":
        return Choice(budget_bytes=budget_bytes, greedy=None, learned=None)
    learned = _more_seconds(steps, greedy)
    if greedy.num_rematerializations:
        for exponent in TIME_EXPONENTS:
            run = _run(steps, inside, "clairvoyant", MAX_SLOWDOWN, exponent)
            # A budget follows a learned step only if that recomputes less.
            if run.status == "ok" and run.rematerialized_seconds < greedy.rematerialized_seconds:
                learned = min(learned, _more_seconds(steps, run))
    return Choice(
        budget_bytes=budget_bytes,
        greedy=_slowdown(steps, _more_seconds(steps, greedy)),
        learned=_slowdown(steps, learned),
    )


def least_choice(steps: MeasuredSteps, peak_bytes: int) -> Choice | None:
    """Return the smallest budget for which a way was found, to a part in 64 of what can be saved."""
    low, high = steps.min_budget_bytes, math.ceil(peak_bytes * (1 + 2 * MARGIN))
    best = None
    step = max(1, (high - low) // 64)
    while high - low > step:
        middle = (low + high) // 2
        found = choice(steps, middle)
        if found.learned is not None and found.learned <= MAX_SLOWDOWN:
            best, high = found, middle
        else:
            low = middle
    return best


def _run(steps: MeasuredSteps, budget: int, policy: str, max_slowdown: float, exponent: float = 1.0) -> Run:
    options: dict[str, Any] = {}
    if policy == "clairvoyant":
        # As the runtime plans a step (csrc/learning/step_plan.cpp).
        options = {"deallocation": "lazy", "placed": False, "partition": False, "moving": False}
        options["time_exponent"] = exponent
    return simulate(
        steps.trace,
        budget=budget,
        policy=policy,
        memory="arena",
        max_slowdown=max_slowdown,
        timeline=False,
        **options,
    )


def _more_seconds(steps: MeasuredSteps, run: Run) -> float:
    evicting = run.search_seconds if run.policy == "coop" else run.num_evictions * steps.bookkeeping_seconds
    return run.rematerialized_seconds + evicting + 2 * run.num_rematerializations * steps.bookkeeping_seconds


def _slowdown(steps: MeasuredSteps, more_seconds: float) -> float:
    return (steps.recorded_seconds + steps.busy * more_seconds / steps.num_steps) / steps.plain_seconds
