"""All graphs of one torch.compile, and the steps that they make up.

A model without graph breaks is one graph, and has the whole budget. With breaks, or with several compiled modules that
share their options, a step runs forward 1, forward 2, …, backward 2, backward 1, and they share one budget. In the
first step nobody knows what follows, so its graphs have provisional plans. When the next step begins, the step is
known, and `step.py` plans it as a whole. A step is known by the order of its graphs: another order is another step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.debugging import aot_eager

from remint.compiled.cache import Cache
from remint.compiled.candidates import provisional_plan
from remint.compiled.errors import OptionError, PlanError
from remint.compiled.fallback import Fallback, has_gradients
from remint.compiled.joint_split import ALONE, saved_bytes_of
from remint.compiled.options import Options
from remint.compiled.planned_graph import PlannedGraph
from remint.compiled.planning import plan_graph
from remint.compiled.runs import Run, addresses_of
from remint.compiled.step import StepPlan, plan_step
from remint.compiled.tier_copies import TierCopies
from remint.errors import BudgetError
from remint.graph import Plan
from remint.offload import Offload
from remint.planners import smallest_plan
from remint.units import parse_budget

# So many different steps are planned. With more of them, all run in the runtime.
MOST_STEPS = 16
# Why steps run in the runtime.
NO_PLAN = "no plan inside the budget was found"
CODE_BETWEEN = "the model runs ops between its graphs, of which no plan knows"
TOO_MANY_STEPS = "this model has too many different steps (graphs, or shapes) to plan them all"
NO_GRAPH = "torch.compile ran this model without a graph, as it cannot capture it or has seen too many shapes"
# A step that does not end, as somebody keeps what it returns, is not a step.
MOST_RUNS = 10_000

Order = tuple[PlannedGraph, ...]


class Compilation:
    """The backend of one torch.compile, and what it knows of the step.

    `one_graph` says that every step is one graph, so that what cannot be planned is refused at once. With `fallback`,
    steps without a plan run in the runtime, if all calls of the model go through `call`.
    """

    def __init__(self, options: Options, *, one_graph: bool = False, fallback: bool = False) -> None:
        self.options = options
        self.cache = Cache(options.cache)
        self.costs = self.cache.costs()
        self.graphs: list[PlannedGraph] = []
        self.steps: dict[Order, StepPlan | PlanError] = {}
        self.fallback = Fallback(options.budget, tells=options.progress)
        self.num_begun = 0  # forwards of graphs, all in all
        self.copies: TierCopies | None = None  # in the tier, if there is one
        self._may_fall_back = (
            fallback and options.inner == "eager" and not options.include_parameters and options.offload is None
        )
        self._has_code_between = False  # whether a graph of this step took what no graph returned
        self._one_graph = one_graph or options.inner == "inductor"
        self._whole: set[PlannedGraph] = set()  # those whose first plan has the whole budget
        self._runs: list[Run] = []
        self._expected: Order = ()
        self._last: Order = ()
        self._next: dict[Order, Order] = {}  # which step followed which
        self._doubts: PlanError | bool = False  # whether a plan of this step is larger than what is left for it

    def __deepcopy__(self, memo: dict[int, Any]) -> Compilation:
        """Make a backend with the same options that knows no step, and has no fallback: nothing calls its `call`.

        Lightning copies the backend of every `torch.compile`, to compile the model again when it has wrapped it.
        """
        return Compilation(self.options, one_graph=self._one_graph)

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile one graph of dynamo's."""
        # One graph more, and dynamo would run the model without any.
        if self._may_fall_back and len(self.steps) >= min(MOST_STEPS, torch._dynamo.config.recompile_limit - 1):
            self.fallback.begin(TOO_MANY_STEPS)
        if self.fallback.reason is not None:
            with self.fallback.outside():
                compiled: Callable[..., Any] = aot_eager(module, list(inputs))
            return compiled
        _specialize(module)
        reason: Any = module.compile_subgraph_reason
        graph = PlannedGraph(self, module, is_part=reason.graph_break or _is_called_by_uncompiled_code())
        graph.compile(inputs)
        if graph.plan is not None:
            self.graphs.append(graph)
        return graph.run

    def call(self, compiled: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the compiled model, inside the runtime if its steps run there."""
        if self._has_code_between and torch.is_grad_enabled() and not any(run.alive for run in self._runs):
            self._end_step()
        if self.fallback.reason is not None:
            return self.fallback.call(compiled, *args, **kwargs)
        begun = self.num_begun
        try:
            results = compiled(*args, **kwargs)
        except _NothingRan:
            return self.fallback.call(compiled, *args, **kwargs)
        if self.num_begun == begun and self._may_fall_back and torch.is_grad_enabled() and has_gradients(results):
            self.fallback.begin(NO_GRAPH)
        return results

    @property
    def plans(self) -> list[Plan]:
        """One plan per run of a graph in each known step; for other graphs their first. None in the runtime."""
        if self.fallback.reason is not None:
            return []
        planned = {graph for order, step in self.steps.items() if isinstance(step, StepPlan) for graph in order}
        others = [graph.plan for graph in self.graphs if graph.plan is not None and graph not in planned]
        return [*(plan for step in self.known_steps for plan in step.plans), *others]

    @property
    def known_steps(self) -> list[StepPlan]:
        """The steps that were seen and planned."""
        return [step for step in self.steps.values() if isinstance(step, StepPlan)]

    def plan(self, graph: PlannedGraph) -> Plan:
        """Return the first plan of a graph, with what is alive now."""
        before = sum(run.saved_bytes for run in self._runs if run.alive)
        own = graph.graph_of(ALONE)
        budget = parse_budget(self.options.budget, peak_bytes=before + own.peak_bytes)
        if isinstance(self.options.offload, Offload):
            if before or graph.is_part:
                raise _several_graphs()
            if graph.device.type != "cpu":
                raise OptionError(
                    "offload= of a compiled model is a file, for models on the CPU, and this one is on "
                    f"{graph.device}: leave it out, or use remint.budget(..., offload=...)"
                )
            self.copies = self.copies or TierCopies(self.options.offload)
            self._whole.add(graph)
            return plan_graph(own, budget, self.options, self.cache, self.copies.tier, graph.stays(own))
        if self._one_graph or not (before or graph.is_part):
            self._whole.add(graph)
            try:
                return plan_graph(own, budget, self.options, self.cache)
            except PlanError as error:
                if self._one_graph or not self.fallback.is_percentage:
                    if not self._may_fall_back:
                        raise
                    self.fallback.begin(NO_PLAN, own.peak_bytes)
                    return Plan.from_sequence(own, range(len(own.ops)))
                # The percentage is one of the step, which may have more graphs.
                self._doubts = error
                return smallest_plan(own)
        plan = provisional_plan(graph, budget, before=before, leaves_space=graph.is_part, seed=self.options.seed)
        self._doubts = self._doubts or plan.peak_bytes > budget
        return plan

    def begins(self, graph: PlannedGraph, args: Sequence[Any]) -> Plan | None:
        """Return the plan for a forward that is about to run, None if it runs in the runtime.

        The first forward of a step finds nothing alive.
        """
        self.num_begun += 1
        if self.fallback.reason is None and self._has_ended(graph):
            self._end_step()
        if self.fallback.reason is not None:
            # The runtime can be entered only by who calls the model: dynamo restores the state of the thread. If code
            # ran before this graph, the rest of this one call is outside.
            if not (self.fallback.is_inside or graph.is_part):
                raise _NothingRan
            return None
        place = len(self._runs)
        refused = isinstance(self.steps.get(self._expected), PlanError)
        if refused or self._expected[place : place + 1] != (graph,):
            self._expected = self._find((*(run.graph for run in self._runs), graph))
        step = self.steps.get(self._expected)
        if isinstance(step, PlanError):
            raise PlanError(str(step), step)  # torch.compile cuts the traceback where an error was made
        if graph.is_part and not self._has_code_between:
            returned = {reference.cdata for run in self._runs for reference in run.returned}
            self._has_code_between = not returned.issuperset(_made_with_gradients(args))
        plan = graph.plan if step is None else step.plans[place]
        assert plan is not None
        self._runs.append(Run(graph, plan, saved_bytes_of(plan)))
        return plan

    def forward_ran(self, inputs: tuple[int, ...], returned: Sequence[Any], saved: Sequence[Any]) -> None:
        """Note what the forward that began last took, returned and saved."""
        self._runs[-1].note(inputs, returned, saved)

    def backward_begins(self, graph: PlannedGraph) -> None:
        """Note that a backward is about to run. By the first one, all forwards of the step are known."""
        first = not any(run.backward_began for run in self._runs)
        for run in reversed(self._runs):
            if run.graph is graph and not run.backward_began:
                run.backward_began = True
                break
        if first and self._doubts and not self._may_fall_back:
            order = tuple(run.graph for run in self._runs)
            if order not in self.steps:
                try:
                    self._learn(self._runs)
                except PlanError:
                    self._forget()  # a step that is refused has ended, whoever still holds its values
                    raise

    def _has_ended(self, graph: PlannedGraph) -> bool:
        """Whether the step before has ended when a forward of this graph is about to run."""
        alive = [place for place, run in enumerate(self._runs) if run.alive]
        if not alive or len(self._runs) > MOST_RUNS:
            return True
        # Something older can be held forever, by the traceback of an error for one. Then a step has ended that ran
        # completely after that, and begins once more.
        ended = [place for place, run in enumerate(self._runs) if run.backward_began]
        return bool(ended) and alive[-1] < ended[0] and self._runs[ended[0]].graph is graph

    def _end_step(self) -> None:
        if not self._runs:
            return  # doubts about the first graph, which has just been compiled, stay
        runs = [run for run in self._runs if not run.alive]
        order = tuple(run.graph for run in runs)
        # What has no backward is no training step.
        trained = any(run.backward_began for run in runs)
        try:
            if trained and self._has_code_between and self._may_fall_back:
                self.fallback.begin(CODE_BETWEEN)
            elif trained and order not in self.steps:
                self._learn_or_fall_back(runs)
        finally:
            if order in self.steps:
                self._next[self._last] = self._last = order
            self._forget()

    def _forget(self) -> None:
        self._runs = []
        self._expected = self._next.get(self._last, ())
        self._doubts = False
        self._has_code_between = False

    def _learn_or_fall_back(self, runs: Sequence[Run]) -> None:
        if not self._may_fall_back:
            if len(self.steps) < MOST_STEPS:
                self._learn(runs)
        elif len(self.steps) >= MOST_STEPS:
            self.fallback.begin(TOO_MANY_STEPS)
        else:
            try:
                self._learn(runs)
            except PlanError:
                # The peak of several graphs is not that of the step, as there is code between them.
                peak = runs[0].graph.graph_of(ALONE).peak_bytes if len(runs) == 1 else 0
                self.fallback.begin(NO_PLAN, peak)

    def _learn(self, runs: Sequence[Run]) -> None:
        """Plan a step that has just been seen for the first time."""
        order = tuple(run.graph for run in runs)
        error = self._doubts
        try:
            if len(order) == 1 and isinstance(error, PlanError):
                raise PlanError(str(error), error)
            if len(order) == 1 and order[0] in self._whole:
                plan = order[0].plan
                assert plan is not None
                self.steps[order] = StepPlan((plan,), plan.peak_bytes, plan.graph.peak_bytes)
            elif self.options.offload is not None:
                raise _several_graphs()
            else:
                self.steps[order] = plan_step(runs, self.options, self.cache)
        except PlanError as failure:
            self.steps[order] = failure
            raise

    def _find(self, begun: Order) -> Order:
        """Return a known step that begins like this one, one that can be planned if there is any, or ()."""
        alike = [order for order in self.steps if order[: len(begun)] == begun]
        return next((order for order in alike if isinstance(self.steps[order], StepPlan)), alike[0] if alike else ())


class _NothingRan(Exception):  # noqa: N818 (it is a signal: whoever calls the model calls it again)
    pass


def _several_graphs() -> PlanError:
    text = (
        "offload= is for models that torch.compile captures as one graph, and this step has more: find the break with "
        "torch._dynamo.explain, or leave offload= out. remint.budget(..., offload=...) runs any model"
    )
    return PlanError(text, BudgetError(""))


def _is_called_by_uncompiled_code() -> bool:
    """Whether the frame that is compiled was called by one that dynamo gave up on, so that it is a part of a step."""
    frame = sys._getframe(1)
    torch_files = str(Path(torch.__file__).parent)
    ours = str(Path(__file__).parent)
    while (caller := frame.f_back) is not None:
        frame = caller
        name = frame.f_code.co_filename
        if frame.f_code.co_name == "compile_wrapper" and name.startswith(torch_files):
            return False
        if not name.startswith((torch_files, ours, "<")):
            return True
    return False


def _made_with_gradients(values: Sequence[Any]) -> set[int]:
    """Return the addresses of the storages of tensors that ops made, and that need gradients."""
    made = [value for value in values if isinstance(value, torch.Tensor) and value.grad_fn is not None]
    return set(addresses_of(made))


def _specialize(module: fx.GraphModule) -> None:
    """Let every size be a number: bytes are planned, so a new shape is a new graph with its own plan."""
    for node in module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("example_value")
        if isinstance(value, torch.SymInt):
            int(value)
        elif isinstance(value, torch.Tensor) and value.layout == torch.strided:
            for size in (*value.size(), *value.stride(), value.storage_offset()):
                int(size)
