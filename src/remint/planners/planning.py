"""`plan` and `frontier`: from a graph and a budget to a plan, by the planner that is asked for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from remint.errors import BudgetError
from remint.graph import Graph, Plan, Tier
from remint.graph.numbered import NumberedGraph
from remint.planners.contract import Infeasible, Progress, Task
from remint.planners.cpu_clock import cpu_seconds
from remint.planners.methods.demand import SECONDS_FOR_LEAST, least_peak
from remint.planners.table import PLANNERS
from remint.planners.tiers.planning import plan_with_tier
from remint.units import format_bytes, parse_budget

Budget = int | float | str
SECONDS_PER_OP = 4e-5  # to make a plan of a schedule, in the time given


def plan(
    graph: Graph,
    budget: Budget,
    planner: str = "auto",
    time_limit: float = 60,
    seed: int = 0,
    progress: bool | Callable[[Progress], None] = False,
    *,
    hint: Plan | None = None,
    offload: Tier | None = None,
    stays: Collection[str] = (),
) -> Plan:
    """Return a schedule of `graph` that stays inside `budget`, as cheap as `planner` can make it.

    `budget` is bytes, or a percentage of `graph.peak_bytes`. `progress=True` prints what is found as it is
    found; a function is called with each `Progress`. `hint` is a plan to start from. `time_limit` is in seconds of
    CPU time: a busy machine gives the same plan, later. `auto` starts from what it found for smaller budgets of the
    same `Graph` object, so that a larger budget planned after a smaller one never costs more. With `offload`, a plan
    may also copy values to that tier and back (`auto`, `search`, `demand`), but for those that `stays` names. Raises
    `BudgetError` if no schedule is found.
    """
    if planner not in PLANNERS:
        raise ValueError(f"there is no planner {planner!r}: choose one of {', '.join(PLANNERS)}")
    if not time_limit >= 0:
        raise ValueError(f"a time limit is a number of seconds, 0 or more, not {time_limit!r}")
    began = time.monotonic()
    budget_bytes = parse_budget(budget, peak_bytes=graph.peak_bytes)
    if offload is not None:
        return plan_with_tier(
            graph,
            budget_bytes,
            offload,
            planner,
            time_limit,
            seed,
            _print_progress if progress is True else progress or None,
            hint,
            frozenset(stays),
        )
    known = _Known.of(graph)
    start = hint.sequence if hint is not None and hint.tier is None and hint.peak_bytes <= budget_bytes else None
    if planner == "auto":
        start = known.cheapest_below(budget_bytes, start)
    reserve = min(time_limit / 2, SECONDS_PER_OP * len(graph.ops))
    task = Task(
        numbered=NumberedGraph.of(graph),
        budget=budget_bytes,
        deadline=cpu_seconds() + time_limit - reserve,
        seed=seed,
        started=began,
        listener=_print_progress if progress is True else progress or None,
        hint=start,
    )
    if budget_bytes < graph.min_budget_bytes:
        raise _too_small(task, planner, Infeasible("no schedule can"))
    try:
        outcome = PLANNERS[planner](task)
    except Infeasible as failure:
        raise _too_small(task, planner, failure) from None
    # Other planners take an op in place for one that makes a copy: their bounds do not hold.
    bound = outcome.bound if planner == "auto" or graph.relaxed is graph else graph.cost
    try:
        result = Plan.from_sequence(
            graph, outcome.sequence, bound=bound, planner=planner, seconds=time.monotonic() - began
        )
    except ValueError:
        raise _too_small(
            task, planner, Infeasible(f"{planner} cannot plan this graph, which has ops in place")
        ) from None
    if result.peak_bytes > budget_bytes:
        raise _too_small(task, planner, Infeasible(f"{planner} has one schedule only", outcome.sequence))
    if planner == "auto":
        known.add(budget_bytes, outcome.sequence)
    return result


@dataclass
class _Known:
    """What `auto` found for a graph, by budget: a plan for a smaller budget is one for a larger one."""

    graph: Graph
    sequences: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph) -> _Known:
        if "_known_plans" not in graph.__dict__:
            graph.__dict__["_known_plans"] = cls(graph)
        known: _Known = graph.__dict__["_known_plans"]
        return known

    def _cost(self, sequence: tuple[int, ...]) -> float:
        return math.fsum(map(NumberedGraph.of(self.graph).cost.__getitem__, sequence))

    def cheapest_below(self, budget: int, start: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """The cheapest of `start` and of what is known for smaller budgets; that of the same one is left out, so that
        the same question has the same answer."""
        found = [sequence for known, sequence in self.sequences.items() if known < budget]
        return min([*found, *([start] if start is not None else [])], key=self._cost, default=None)

    def add(self, budget: int, sequence: tuple[int, ...]) -> None:
        if budget not in self.sequences or self._cost(sequence) < self._cost(self.sequences[budget]):
            self.sequences[budget] = sequence


def frontier(
    graph: Graph, budgets: Iterable[Budget], planner: str = "auto", time_limit: float = 60, seed: int = 0
) -> dict[int, Plan | None]:
    """Return the memory-time curve: a plan per budget in bytes, or None where none was found.

    `time_limit` is for each budget. A plan for a tighter budget is one for every looser one, and a bound for
    a looser one holds for every tighter one, so costs never rise with the budget.
    """
    wanted = sorted({parse_budget(b, peak_bytes=graph.peak_bytes) for b in budgets})
    plans: dict[int, Plan | None] = {}
    hint: Plan | None = None
    for nbytes in wanted:
        found: Plan | None
        try:
            found = plan(graph, nbytes, planner, time_limit, seed, hint=hint)
        except BudgetError:
            found = None
        if hint is not None and (found is None or found.cost > hint.cost):
            bound = found.bound if found is not None else graph.cost
            found = Plan.from_sequence(graph, hint.sequence, bound=bound, planner=hint.planner, seconds=hint.seconds)
        plans[nbytes] = hint = found
    bound = 0.0
    for nbytes in reversed(wanted):
        found = plans[nbytes]
        if found is not None:
            bound = max(bound, found.bound)
            if bound > found.bound:
                plans[nbytes] = Plan.from_sequence(
                    graph, found.sequence, bound=bound, planner=found.planner, seconds=found.seconds
                )
    return plans


def _too_small(task: Task, planner: str, failure: Infeasible) -> BudgetError:
    graph, budget = task.graph, task.budget
    try:
        known_plan = Plan.from_sequence(graph, failure.least or range(len(graph.ops)))
    except ValueError:  # it needs an input once more that was consumed for good
        known_plan = Plan.from_sequence(graph, range(len(graph.ops)))
    known = least_peak(task, known_plan, SECONDS_FOR_LEAST).peak_bytes
    limit = max(graph.min_budget_bytes, budget + 1) if failure.proven else graph.min_budget_bytes
    advice = "" if planner == "auto" or known <= budget else ", or ask auto"
    if known <= budget:
        advice = " of another planner: ask auto"
    return BudgetError(
        f"{format_bytes(budget)} was asked of {planner}: {failure}. Below {format_bytes(limit)} no schedule "
        f"exists ({_largest(graph, limit)}); the smallest budget with a known plan is {known} B "
        f"({format_bytes(known)}): give at least that{advice}",
        min_budget_bytes=limit,
        known_budget_bytes=known,
    )


def _largest(graph: Graph, limit: int) -> str:
    """Say what no schedule can do without."""
    needs = {
        op.name: sum(graph.nbytes(v) for v in {*op.inputs, *op.outputs} - set(graph.constants)) for op in graph.ops
    }
    needs["the end of the step"] = sum(graph.nbytes(v) for v in set(graph.outputs) - set(graph.constants))
    name = max(needs, key=lambda n: needs[n])
    more = ", and making what it reads takes more" if graph.constant_bytes + needs[name] < limit else ""
    return f"constants hold {format_bytes(graph.constant_bytes)}, {name} {format_bytes(needs[name])} at once{more}"


def _print_progress(progress: Progress) -> None:
    found = "none yet"
    if progress.cost is not None and math.isfinite(progress.cost) and progress.base:
        found = f"+{progress.cost / progress.base - 1:.3%}, gap {progress.gap or 0.0:.3%}"
    bound = f"+{progress.bound / progress.base - 1:.3%}" if progress.base else "0"
    print(f"{progress.seconds:7.2f} s  {progress.planner}: plan {found}, bound {bound}", flush=True)
