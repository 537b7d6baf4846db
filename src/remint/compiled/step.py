"""The plan of a whole step of several graphs: what each run does, so that all of them stay inside one budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from remint.compiled.cache import Cache
from remint.compiled.candidates import Candidate
from remint.compiled.division import Slot, divide, first_unfitting, least_budget, limits_of, peak_of
from remint.compiled.errors import PlanError
from remint.compiled.joint_split import ALONE, Around
from remint.compiled.options import Options
from remint.compiled.planning import bytes_beside, plan_tensors
from remint.compiled.runs import Run, constants_of, gradients_found
from remint.errors import BudgetError
from remint.graph import Graph, Plan
from remint.planners import quick_plan
from remint.units import format_bytes, parse_budget

if TYPE_CHECKING:
    from remint.compiled.planned_graph import PlannedGraph

# Plans are made better in rounds, by so many short searches per graph, with these parts of what the others could do
# without.
ROUNDS = 3
SHORT_SEARCHES = 3
PARTS_OF_SLACK = (0.0, 0.5)
# A plan whose recomputation takes less than this part of the step is good enough.
GOOD_ENOUGH = 1e-3


@dataclass(frozen=True)
class StepPlan:
    """A plan per run, in the order of the forwards, and the peak of the step with these plans and without a budget."""

    plans: tuple[Plan, ...]
    peak_bytes: int
    unplanned_peak_bytes: int


def plan_step(runs: Sequence[Run], options: Options, cache: Cache) -> StepPlan:
    """Plan all runs of a step together, or raise a `PlanError` with the smallest budget of the step."""
    step = _Step(runs, options, cache)
    step.choose()
    step.improve()
    return step.result()


class _Question(NamedTuple):
    graph: PlannedGraph
    before: int  # what earlier runs save
    later: int  # what later runs need beside what this one saves
    after: int  # the gradients that later runs have made when this backward begins


class _Step:
    def __init__(self, runs: Sequence[Run], options: Options, cache: Cache) -> None:
        self.runs = runs
        self.options = options
        self.cache = cache
        self.after = gradients_found(runs)
        self.constants = constants_of(runs)
        graphs = [run.graph.graph_of(ALONE) for run in runs]
        self.own_constants = [graph.constant_bytes for graph in graphs]
        self.base = [graph.cost for graph in graphs]
        self.num_ops = sum(len(graph.ops) for graph in graphs)
        keep_all = [Candidate.of(graph, range(len(graph.ops))) for graph in graphs]
        self.chosen = keep_all
        self.unplanned_peak = self.constants + peak_of(self._bare_slots(), keep_all)
        self.budget = parse_budget(options.budget, peak_bytes=self.unplanned_peak)
        self.limit = self.budget - self.constants  # for what is planned

    def _bare_slots(self) -> list[Slot]:
        return [Slot((), after) for after in self.after]

    def _slots(self) -> list[Slot]:
        most: dict[object, int] = {}
        for run, after in zip(self.runs, self.after, strict=True):
            most[run.graph] = max(after, most.get(run.graph, 0))
        pools = {run.graph: run.graph.candidates(most[run.graph]) for run in self.runs}
        return [Slot(pools[run.graph], after) for run, after in zip(self.runs, self.after, strict=True)]

    def choose(self) -> None:
        """Choose among the candidates, for what is left beside the heap's own bytes, where that can be done."""
        if self.unplanned_peak <= self.budget:
            return
        for run in {run.graph: run for run in self.runs}.values():
            run.graph.add_candidate(run.plan.sequence)
        slots = self._slots()
        least = least_budget(slots)
        while least > self.limit:
            # The candidates are made quickly. Before a budget is refused, the planner has its full time.
            if not self._squeeze(slots):
                raise self._too_small(least + self.constants)
            slots = self._slots()
            least = least_budget(slots)
        within = self.limit - bytes_beside(self.num_ops, self.budget)
        if least <= within:
            self.limit = within
        chosen = divide(slots, self.limit)
        assert chosen is not None, "the least budget is one that divides"
        self.chosen = chosen

    def _squeeze(self, slots: Sequence[Slot]) -> bool:
        """Plan the first run that does not fit beside the least that those before it save; say whether that helped."""
        place, before = first_unfitting(slots, self.limit)
        graph = self.runs[place].graph
        try:
            planned = graph.graph_of(self._around(place, before))
            plan = plan_tensors(planned, self.limit + self.constants, self.options, self.cache)
        except BudgetError:
            return False
        graph.add_candidate(plan.sequence)
        return True

    def improve(self) -> None:
        """Look for better plans, for one run after the other, in what the others leave to it.

        What is found is a candidate for every run of the same graph, so the budget is divided anew each time. First
        come short searches, until they find nothing; then the planner of the options, in the time that it has.
        """
        num_graphs = len({run.graph for run in self.runs})
        tried: set[_Question] = set()
        for _ in range(ROUNDS):
            cost = self._cost
            for place in self._worst(SHORT_SEARCHES * num_graphs):
                for part in PARTS_OF_SLACK:
                    question = self._question(place, part)
                    if question not in tried:
                        tried.add(question)
                        self._ask(place, question, self._short_search)
            if self._cost >= cost * (1 - GOOD_ENOUGH):
                break
        end = time.monotonic() + self.options.time_limit
        tried.clear()
        for place in self._worst(num_graphs):
            question = self._question(place, 0.0)
            if question not in tried and time.monotonic() < end:
                tried.add(question)
                self._ask(place, question, self._long_search)

    @property
    def _cost(self) -> float:
        return sum(candidate.cost for candidate in self.chosen)

    def _worst(self, count: int) -> list[int]:
        """Return the runs that recompute for longest, the longest first."""
        losses = [candidate.cost - base for candidate, base in zip(self.chosen, self.base, strict=True)]
        places = [place for place, loss in enumerate(losses) if loss > GOOD_ENOUGH * sum(self.base)]
        return sorted(places, key=lambda place: -losses[place])[:count]

    def _question(self, place: int, part: float) -> _Question:
        """Return what a run is planned beside: what the others take now, less a part of what they could do without."""
        before, later = limits_of(self._bare_slots(), self.chosen, place)
        slots = self._slots()
        least_before = sum(min(c.saved_bytes for c in slot.candidates) for slot in slots[:place])
        least_later = least_budget(slots[place + 1 :])
        before -= int(part * max(0, before - least_before))
        later -= int(part * max(0, later - least_later))
        return _Question(self.runs[place].graph, before, later, self.after[place])

    def _ask(self, place: int, question: _Question, search: Callable[[Graph, Plan], Plan | None]) -> None:
        graph = question.graph
        around = self._around(place, question.before)
        # At the turn the planned graph also holds the tangents and the gradients, which later runs do not find there.
        around = replace(around, later=max(0, question.later - around.after - graph.tangent_bytes))
        planned = graph.graph_of(around)
        plan = search(planned, Plan.from_sequence(planned, self.chosen[place].sequence))
        if plan is None:
            return
        graph.add_candidate(plan.sequence)
        chosen = divide(self._slots(), self.limit)
        if chosen is not None and sum(c.cost for c in chosen) < self._cost:
            self.chosen = chosen

    def _short_search(self, graph: Graph, hint: Plan) -> Plan:
        return quick_plan(graph, self.limit + self.constants, hint, self.options.seed)

    def _long_search(self, graph: Graph, hint: Plan) -> Plan | None:
        num_graphs = len({run.graph for run in self.runs})
        options = replace(self.options, time_limit=self.options.time_limit / num_graphs)
        try:
            return plan_tensors(graph, self.limit + self.constants, options, self.cache, hint=hint)
        except BudgetError:
            return None

    def _around(self, place: int, before: int) -> Around:
        return Around(before=before + self.constants - self.own_constants[place], after=self.after[place])

    def result(self) -> StepPlan:
        """Return the plans, each with what the others hold at the time."""
        plans = []
        before = 0
        for place, (run, candidate) in enumerate(zip(self.runs, self.chosen, strict=True)):
            placed = run.graph.graph_of(self._around(place, before))
            plans.append(Plan.from_sequence(placed, candidate.sequence, planner=self.options.planner))
            before += candidate.saved_bytes
        peak = self.constants + peak_of(self._bare_slots(), self.chosen)
        return StepPlan(tuple(plans), peak, self.unplanned_peak)

    def _too_small(self, known: int) -> PlanError:
        returned = 0
        bound = 0
        for place, run in enumerate(self.runs):
            bound = max(bound, run.graph.graph_of(self._around(place, returned)).min_budget_bytes)
            returned += run.graph.returned_bytes
        error = BudgetError("", min_budget_bytes=bound, known_budget_bytes=known)
        count = len({run.graph for run in self.runs})
        return PlanError(
            f"this training step cannot be planned ({format_bytes(self.unplanned_peak)} without a budget, {count} "
            f"graphs that run {len(self.runs)} times). {format_bytes(self.budget)} was asked. Below "
            f"{format_bytes(bound)} no schedule exists; the smallest budget with a known plan is {known} B "
            f"({format_bytes(known)}): give at least that",
            error,
        )
