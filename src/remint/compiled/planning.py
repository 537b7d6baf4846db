"""From a graph and the options to a plan: kept ones first, progress for long solves, Ctrl-C for the best so far."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from remint import planners
from remint.compiled.cache import Cache
from remint.compiled.errors import PlanError
from remint.compiled.options import Options
from remint.errors import BudgetError
from remint.graph import Graph, Plan, Tier
from remint.planners import Progress
from remint.units import format_bytes

QUIET_SECONDS = 5.0
SECONDS_BETWEEN = 2.0

# On the heap beside the bytes of tensors: their headers, autograd's nodes, Python's objects. As measured, about this
# much per op of a graph; not more than this part of the budget is left to them.
BYTES_BESIDE_OP = 512
LARGEST_PART_BESIDE = 1 / 256


def plan_graph(
    graph: Graph, budget: int, options: Options, cache: Cache, tier: Tier | None = None, stays: Collection[str] = ()
) -> Plan:
    """Return a plan inside `budget`, or raise a `BudgetError` with the smallest budget that is known to do.

    A graph that has to be squeezed leaves space for what is on the heap beside tensors, where that can be done.
    """
    if graph.peak_bytes <= budget:
        return plan_tensors(graph, budget, options, cache)
    beside = bytes_beside(len(graph.ops), budget)
    try:
        return plan_tensors(graph, budget - beside, options, cache, tier=tier, stays=stays)
    except PlanError as error:
        if error.known_budget_bytes is not None and error.known_budget_bytes > budget:
            raise
    # It may fit without what is beside the tensors.
    hint = planners.smallest_plan(graph)
    return plan_tensors(graph, budget, options, cache, hint=hint, tier=tier, stays=stays)


def bytes_beside(num_ops: int, budget: int) -> int:
    """Return what is left to the heap beside tensors, in a step with this many ops."""
    return min(BYTES_BESIDE_OP * num_ops, int(budget * LARGEST_PART_BESIDE))


def plan_tensors(
    graph: Graph,
    budget: int,
    options: Options,
    cache: Cache,
    hint: Plan | None = None,
    tier: Tier | None = None,
    stays: Collection[str] = (),
) -> Plan:
    """Return a plan whose tensors stay inside `budget`; if the planner finds none, `hint`, if that one does.

    Values of `stays` never go to the tier.
    """
    # A bandwidth is measured anew each time.
    below = () if tier is None else (tier.bytes, f"{float(tier.bandwidth):.0e}", tier.latency)
    key = (options.planner, options.time_limit, options.seed, *below)
    kept = cache.plan(graph, budget, key)
    if kept is not None:
        return kept
    listener = _Printer() if options.progress else False
    with _noting_interrupts() as interrupts:
        try:
            plan = planners.plan(
                graph,
                budget,
                options.planner,
                options.time_limit,
                options.seed,
                listener,
                hint=hint,
                offload=tier,
                stays=stays,
            )
        except BudgetError as error:
            if hint is None or hint.peak_bytes > budget:
                raise PlanError(_explain(graph, error), error) from None
            plan = hint
    if interrupts:
        print(f"remint: stopped; going on with the best plan so far, +{plan.overhead:.2%}", file=sys.stderr)
    else:
        cache.keep_plan(plan, budget, key)
    return plan


def _explain(graph: Graph, error: BudgetError) -> str:
    counted = f"{format_bytes(graph.peak_bytes)} without a budget"
    return f"this training step cannot be planned ({counted}). {error}"


@dataclass
class _Printer:
    """Prints what a solve has found, once it takes long, and not too often."""

    last: float = QUIET_SECONDS - SECONDS_BETWEEN

    def __call__(self, progress: Progress) -> None:
        if progress.seconds < self.last + SECONDS_BETWEEN:
            return
        self.last = progress.seconds
        found = "no plan yet"
        if progress.cost is not None and progress.base:
            found = f"plan +{progress.cost / progress.base - 1:.2%}, gap {progress.gap or 0.0:.2%}"
        bound = f"+{progress.bound / progress.base - 1:.2%}" if progress.base else "0"
        print(
            f"remint: {progress.seconds:.0f} s: {found}, bound {bound} (Ctrl-C takes the best so far)",
            file=sys.stderr,
            flush=True,
        )


@contextmanager
def _noting_interrupts() -> Iterator[list[int]]:
    """Note whether Ctrl-C was pressed: planners end with what they have, and that is not worth keeping."""
    interrupts: list[int] = []
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield interrupts
        return

    def note(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        previous(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, previous)
