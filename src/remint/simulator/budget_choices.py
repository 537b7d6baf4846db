"""What a training step costs under each budget: recorded steps, simulated, with the times that were measured.

A simulation says what is recomputed. How long that makes a step also depends on what remint itself takes, and on
the step without it. Both were measured while the steps were recorded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from remint import _core
from remint.offload import Offload
from remint.results.advice import Choice
from remint.results.run import Run
from remint.simulator.simulate import simulate
from remint.trace import Trace
from remint.trace.events import ELSEWHERE
from remint.trace.last_step import last_step

# What a plan does between the ops of a step, as `_core.simulate_step` takes it.
Actions = tuple[list[tuple[bool, int]], list[int]]

# The first steps of a budget are greedy. A guard ends them at 100 times their own time: stay well away from it.
MAX_GREEDY_SLOWDOWN = 30.0
MAX_SLOWDOWN = 10.0
# A real arena can be a little worse off than a simulated one: addresses, the first step, the data of the next batch.
MARGIN = 0.02
# A step without a guide stays greedy. What that recomputes differs from step to step, the more so the more it is.
MAX_UNGUIDED_SLOWDOWN = 2.0
# Others on the machine disturb the time of searches: short simulations run more than once.
SIMULATED_TIMES = 3
SIMULATED_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class MeasuredSteps:
    """Some steps of a program that were recorded, one like the other."""

    trace: Trace
    num_steps: int
    plain_seconds: float
    """Of one step without remint."""
    recorded_seconds: float
    """Of one step while all its ops are seen, as they are in a budget that is short of memory."""
    bookkeeping_seconds: float = 0.0
    """Of one op, around it. An eviction takes about as long, a replay twice."""
    beside_bytes: int = 0
    """Counted in every budget, but not in the trace: what the program made before, and holds."""

    @cached_property
    def peak_bytes(self) -> int:
        """What a step takes without a budget, workspaces included."""
        run = simulate(self.trace, budget=2 * self.trace.peak_bytes + (1 << 20), policy="coop", memory="arena")
        return run.peak_bytes + self.beside_bytes

    @cached_property
    def last(self) -> Trace | None:
        """The last step alone; None if its ops are not those of the step before."""
        return last_step(self.trace, self.num_steps)

    def inside(self, budget_bytes: int) -> int:
        """Return what a budget has for the recorded steps."""
        return int((budget_bytes - self.beside_bytes) * (1 - MARGIN))

    @property
    def scale(self) -> float:
        """Seconds of `plain_seconds` per second of the trace, on a busy machine: all ops take at most the step."""
        return min(1.0, self.plain_seconds * self.num_steps / self.trace.seconds) if self.trace.seconds else 1.0

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
    inside = steps.inside(budget_bytes)
    if inside <= 0:
        return Choice(budget_bytes=budget_bytes, greedy=None, learned=None)
    greedy = simulated_greedy(steps.trace, inside)
    # A step is learned from a greedy one. What takes longer than the guard allows does not get that far.
    if greedy.status != "ok":
        return Choice(budget_bytes=budget_bytes, greedy=None, learned=None)
    first = _slowdown(steps, _more_seconds(steps, greedy))
    guided = _guided_seconds(steps, inside) if greedy.num_rematerializations else None
    # A budget follows a learned step only if that recomputes less.
    if guided is not None and guided[0] < greedy.rematerialized_seconds:
        then: float | None = _slowdown(steps, guided[1])
    else:
        then = first if first <= MAX_UNGUIDED_SLOWDOWN else None
    return Choice(budget_bytes=budget_bytes, greedy=first, learned=then)


def _guided_seconds(steps: MeasuredSteps, budget: int) -> tuple[float, float] | None:
    """Return the seconds that learned steps recompute, and with what surrounds that; None if no way is found.

    All blocks need addresses. Close to the smallest budget there may be none, although the bytes fit.
    """
    for limit in _core.shrunk_budgets(budget):
        found = _core.simulate_step(steps.trace, budget=limit, arena_bytes=budget)
        if found is None:
            return None
        if found["followed"] is not None and not found["followed"]["departed"]:
            seconds = found["rematerialized_ns"] * 1e-9
            return seconds, _learned_seconds(steps, found)
    return None


def _learned_seconds(steps: MeasuredSteps, simulated: _core.SimulatedStep) -> float:
    """Return what a step that is known costs beyond its ops."""
    # Each was evicted before, which takes about as long as to note an op. A replay takes twice that.
    around = 3 * simulated["num_rematerializations"] * steps.bookkeeping_seconds
    return simulated["rematerialized_ns"] * 1e-9 + around


def planned_choice(steps: MeasuredSteps, found: Choice, actions: Actions) -> Choice:
    """Return the choice as it is with a plan of the last step; unchanged if that is no faster, or finds no places."""
    inside = steps.inside(found.budget_bytes)
    assert steps.last is not None
    planned = _core.simulate_step(steps.last, budget=inside, actions=actions, arena_bytes=inside)
    if planned is None or planned["followed"] is None or planned["followed"]["departed"]:
        return found
    seconds = _learned_seconds(steps, planned)
    then = _slowdown(steps, steps.num_steps * seconds)
    return found if found.learned is not None and found.learned <= then else replace(found, learned=then)


def least_choice(low: int, peak_bytes: int, choice_of: Callable[[int], Choice]) -> Choice | None:
    """Return the smallest budget above `low` for which a way was found, to a part in 64 of what can be saved."""
    high = math.ceil(peak_bytes * (1 + 2 * MARGIN))
    best = None
    step = max(1, (high - low) // 64)
    while high - low > step:
        middle = (low + high) // 2
        found = choice_of(middle)
        if found.best is not None and found.best <= MAX_SLOWDOWN:
            best, high = found, middle
        else:
            low = middle
    return best


def simulated_greedy(trace: Trace, budget: int, offload: Offload | None = None) -> Run:
    """Return what the default policy does. Its search time, which is real time, is the least of some runs."""
    runs: list[Run] = []
    began = time.perf_counter()
    while not runs or (len(runs) < SIMULATED_TIMES and time.perf_counter() - began < SIMULATED_SECONDS):
        runs.append(
            simulate(
                trace,
                budget=budget,
                policy="coop",
                memory="arena",
                max_slowdown=MAX_GREEDY_SLOWDOWN,
                offload=offload,
                timeline=False,
            )
        )
    return min(runs, key=lambda run: run.search_seconds)


def _more_seconds(steps: MeasuredSteps, run: Run) -> float:
    return run.rematerialized_seconds + run.search_seconds + 2 * run.num_rematerializations * steps.bookkeeping_seconds


def _slowdown(steps: MeasuredSteps, more_seconds: float) -> float:
    return (steps.recorded_seconds + steps.scale * more_seconds / steps.num_steps) / steps.plain_seconds
