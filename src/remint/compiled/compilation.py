"""All graphs of one torch.compile: each is planned with what the others hold at the same time.

A model without graph breaks is one graph, and has the whole budget. With breaks, a step runs forward 1, forward 2, …,
backward 2, backward 1. In the first step nobody knows what follows a break, so a graph that ends in one is planned
to leave as much room as it can; a later graph is planned with what the earlier ones keep. When the next step begins,
all graphs are known: each is planned again, with what the plans of the others leave to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef

from remint.compiled.cache import Cache
from remint.compiled.joint_split import ALONE, Around, kept_bytes
from remint.compiled.options import Options
from remint.compiled.planned_graph import PlannedGraph
from remint.compiled.planning import plan_graph
from remint.errors import BudgetError
from remint.graph import Graph, Plan
from remint.units import parse_budget

# Before what follows a break is known: the part of the budget that is left to it, the first that can be done, and how
# much of the budget its gradients may take. These plans run once, so they are not searched for long.
PARTS_FOR_LATER = (0.9, 0.8, 0.7, 0.6, 0.5, 0.25, 0.0)
PART_FOR_GRADIENTS = 0.1
FIRST_SECONDS = 5.0
# When all graphs are known, plans are made better one by one: how often per graph, and for how long each time.
TRIALS = 4
TRIAL_SECONDS = 1.0


class Compilation:
    """The backend of one torch.compile, and what it knows of the step."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.cache = Cache(options.cache)
        self.costs = self.cache.costs()
        self.graphs: list[PlannedGraph] = []
        self._open: list[tuple[PlannedGraph, Any]] = []
        self._order: list[PlannedGraph] = []
        self._divided: set[PlannedGraph] = set()

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile one graph of dynamo's."""
        _specialize(module)
        graph = PlannedGraph(self, module)
        graph.compile(inputs)
        if graph.plan is not None:
            self.graphs.append(graph)
        return graph.run

    def plan(self, graph: PlannedGraph) -> Plan:
        """Plan a graph that was not planned before, with what is alive now."""
        before = sum(other.kept_bytes for other in self._alive())
        own = graph.graph_of(ALONE)
        budget = parse_budget(self.options.budget, peak_bytes=before + own.peak_bytes)
        if not graph.ends_in_break:
            return plan_graph(graph.graph_of(Around(before=before)), budget, self.options, self.cache)
        left = max(0, budget - before)
        gradients = int(PART_FOR_GRADIENTS * left)
        return self._plan_to_leave(
            left, budget, lambda room: graph.graph_of(Around(before=before, room=room, after=min(room, gradients)))
        )

    def _plan_to_leave(self, left: int, budget: int, graph_beside: Callable[[int], Graph]) -> Plan:
        """Plan a graph beside as much as can be done of the `left` bytes."""
        for part in PARTS_FOR_LATER:
            try:
                return plan_graph(graph_beside(int(part * left)), budget, self._quick, self.cache)
            except BudgetError:
                if part == PARTS_FOR_LATER[-1]:
                    raise
        raise AssertionError("the last part is 0")

    @property
    def _quick(self) -> Options:
        return replace(self.options, planner="search", time_limit=min(FIRST_SECONDS, self.options.time_limit))

    def begins(self, graph: PlannedGraph) -> None:
        """Note that a forward is about to run. The first of a step finds nothing alive of the step before."""
        if not self._alive():
            order, self._order = self._order, []
            if len(order) > 1 and not self._divided.issuperset(order):
                self._divide(list(dict.fromkeys(order)))
        self._order.append(graph)

    def saved(self, graph: PlannedGraph, tensor: torch.Tensor) -> None:
        """Note that a forward has saved its values, of which `tensor` is one: they live as long as it does."""
        reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self._open.append((graph, reference))

    def _alive(self) -> list[PlannedGraph]:
        self._open = [(graph, reference) for graph, reference in self._open if not reference.expired()]
        return [graph for graph, _ in self._open]

    def _divide(self, graphs: list[PlannedGraph]) -> None:
        """Plan all graphs of a step again, now that it is known what they leave to each other.

        The budget is divided in proportion to what they would take, if that can be done; or else as in the first step,
        where all but the last left as much room as they could, and so does now the last. From there on the graph that
        loses most gets a better plan, for half of what is left; in the end, each for all that is left.
        """
        self._divided.update(graphs)
        gradients = [graph.gradient_bytes for graph in graphs]
        after = [sum(gradients[place + 1 :]) for place in range(len(graphs))]
        own = [graph.graph_of(Around(after=nbytes)) for graph, nbytes in zip(graphs, after, strict=True)]
        wanted = [kept_bytes(_keep_all(graph)) for graph in own]
        # What a graph and all later ones take without a budget.
        taken = [0] * (len(graphs) + 1)
        for place in reversed(range(len(graphs))):
            taken[place] = max(own[place].peak_bytes, wanted[place] + taken[place + 1])
        budget = parse_budget(self.options.budget, peak_bytes=taken[0])
        plans = [Plan.from_sequence(own[i], graph.plan.sequence) for i, graph in enumerate(graphs) if graph.plan]

        def improve(place: int, part: float, options: Options) -> bool:
            before = sum(map(kept_bytes, plans[:place]))
            room = between = 0
            for later in plans[place + 1 :]:
                room = max(room, between + later.peak_bytes)
                between += kept_bytes(later)
            left = max(0, budget - before - kept_bytes(plans[place]) - room)
            around = Around(before=before, room=room + int((1 - part) * left), after=after[place])
            try:
                plan = plan_graph(graphs[place].graph_of(around), budget, options, self.cache)
            except BudgetError:
                return False
            if plan.cost >= plans[place].cost:
                return False
            plans[place] = Plan.from_sequence(own[place], plan.sequence, bound=plan.bound, planner=plan.planner)
            return True

        def loss(place: int) -> float:
            return plans[place].cost - own[place].cost

        quick = replace(self._quick, time_limit=min(TRIAL_SECONDS, self.options.time_limit))
        first = plans[:]
        try:
            for place, graph in enumerate(graphs):
                before = sum(map(kept_bytes, plans[:place]))
                later = taken[place + 1]
                room = min(later, max(0, budget - before) * later // max(1, wanted[place] + later))
                around = Around(before=before, room=room, after=after[place])
                plan = plan_graph(graph.graph_of(around), budget, quick, self.cache)
                plans[place] = Plan.from_sequence(own[place], plan.sequence)
        except BudgetError:
            plans[:] = first
            before = sum(map(kept_bytes, plans[:-1]))
            with suppress(BudgetError):
                plan = self._plan_to_leave(
                    max(0, budget - before), budget, lambda room: graphs[-1].graph_of(Around(before=before + room))
                )
                plans[-1] = Plan.from_sequence(own[-1], plan.sequence)
        better = set(range(len(graphs)))
        for _ in range(TRIALS * len(graphs)):
            if not better:
                break
            place = max(better, key=loss)
            if not improve(place, 0.5, quick):
                better.remove(place)
        for place in sorted(range(len(graphs)), key=loss, reverse=True):
            improve(place, 1.0, self.options)
        for place, (graph, plan) in enumerate(zip(graphs, plans, strict=True)):
            placed = graph.graph_of(Around(before=sum(map(kept_bytes, plans[:place])), after=after[place]))
            graph.replace(Plan.from_sequence(placed, plan.sequence, bound=plan.bound, planner=plan.planner))


def _keep_all(graph: Graph) -> Plan:
    """The plan without rematerialization."""
    return Plan.from_sequence(graph, range(len(graph.ops)))


def _specialize(module: fx.GraphModule) -> None:
    """Let every size be a number: bytes are planned, so a new shape is a new graph with its own plan."""
    for node in module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("example_value")
        if isinstance(value, torch.SymInt):
            int(value)
        elif isinstance(value, torch.Tensor) and value.layout == torch.strided:
            for size in (*value.size(), *value.stride(), value.storage_offset()):
                int(size)
