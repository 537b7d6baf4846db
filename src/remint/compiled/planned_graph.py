"""One graph of dynamo's, traced by AOTAutograd, planned, and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import aot_eager, boxed_nop
from torch.utils._python_dispatch import _disable_current_modes

from remint.capture.costs import Cost, estimate, measure
from remint.compiled import inductor
from remint.compiled.candidates import Candidate, best_of, candidates_of
from remint.compiled.joint_split import ALONE, Around, Training
from remint.compiled.lowering import lower
from remint.compiled.runs import addresses_of
from remint.graph import Graph, Plan

if TYPE_CHECKING:
    from remint.compiled.compilation import Compilation


class PlannedGraph:
    """A graph of a step. `plan` is its first plan, None if it has no backward: inference runs as it is.

    A graph can run several times in a step, with another plan each time. AOTAutograd compiles each plan once.
    """

    def __init__(self, compilation: Compilation, module: fx.GraphModule, *, is_part: bool) -> None:
        self.compilation = compilation
        self.module = module
        self.is_part = is_part  # of a step that has more graphs, as far as its code tells
        self.plan: Plan | None = None
        self.parameters: frozenset[int] = frozenset()  # which inputs are parameters or buffers
        self._next: Plan | None = None
        self._training: Training | None = None
        self._costs: dict[str, Cost] = {}
        self._num_returned = 0
        self._compiled: dict[tuple[int, ...] | None, Callable[..., Any]] = {}
        self._unplanned: Callable[..., Any] | None = None  # as it is, for steps in the runtime
        self._candidates: dict[int, list[Candidate]] = {}

    def compile(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Trace and plan, and return what runs it."""
        with self.compilation.fallback.outside():
            return self._compile(inputs)

    def _compile(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        if self.compilation.options.inner == "inductor":
            compiled = inductor.compile(self.module, inputs, self._partition)
        else:
            backend = aot_autograd(
                fw_compiler=lambda module, inputs: self._watched_forward(boxed_nop(module, inputs)),
                bw_compiler=lambda module, inputs: self._watched_backward(boxed_nop(module, inputs)),
                inference_compiler=boxed_nop,
                partition_fn=self._partition,
                keep_inference_input_mutations=True,
            )
            compiled = backend(self.module, inputs)
        plan = self.plan if self._next is None else self._next
        self._compiled[plan.sequence if plan is not None else None] = compiled
        self._next = None
        return compiled

    def run(self, *args: Any) -> Any:
        """Run the forward; autograd runs the backward."""
        if self.plan is None:
            return self._compiled[None](*args)
        plan = self.compilation.begins(self, args)
        if plan is None:
            return self._without_plan(args)(*args)
        compiled = self._compiled.get(plan.sequence)
        if compiled is None:
            self._next = plan
            compiled = self.compile(args)
        return compiled(*args)

    def _without_plan(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        if self._unplanned is None:
            with self.compilation.fallback.outside():
                self._unplanned = aot_eager(self.module, list(inputs))
        return self._unplanned

    def graph_of(self, around: Around) -> Graph:
        """Return what is planned, in a step that holds this around it."""
        assert self._training is not None
        include = self.compilation.options.include_parameters
        return self._training.graph(self._costs, around=around, include_parameters=include)

    def stays(self, planned: Graph) -> set[str]:
        """Return the values that a tier never gets."""
        assert self._training is not None
        return self._training.stays(planned)

    @property
    def device(self) -> torch.device:
        """Where the inputs are."""
        assert self._training is not None
        return next(t.device for t in self._training.joint.inputs if isinstance(t, torch.Tensor))

    def gradients_of(self, number: int) -> Mapping[str, int]:
        """Return the gradients that the backward makes of the input with this number: names and bytes."""
        assert self._training is not None
        return self._training.gradients_of(number)

    @property
    def constants(self) -> list[Mapping[str, int]]:
        """Per input what counts of it; then what the graph itself holds."""
        assert self._training is not None
        return self._training.constants_by_input() if self.compilation.options.include_parameters else []

    @property
    def tangent_bytes(self) -> int:
        """The bytes of what the backward begins with."""
        assert self._training is not None
        return self._training.tangent_bytes

    @property
    def returned_bytes(self) -> int:
        """The bytes of what the forward returns, which every plan keeps until the backward ends."""
        assert self._training is not None
        return self._training.returned_bytes

    def candidates(self, after: int = 0) -> list[Candidate]:
        """Return plans to choose from; `after` are the most gradients that a backward of this graph finds."""
        if after not in self._candidates:
            self._candidates[after] = candidates_of(self, after, self.compilation.options.seed)
        return best_of(candidate for found in self._candidates.values() for candidate in found)

    def add_candidate(self, sequence: Sequence[int]) -> None:
        """Add a plan to choose from."""
        self._candidates.setdefault(-1, []).append(Candidate.of(self.graph_of(ALONE), sequence))

    def _partition(
        self,
        joint: fx.GraphModule,
        inputs: Sequence[Any],
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: list[int] | None = None,
        **_: Any,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Split the joint graph as the plan does: what AOTAutograd calls a partitioner."""
        options = self.compilation.options
        primals, tangents = inputs
        training = self._training = Training.split(
            joint, [*primals, *tangents], num_fwd_outputs, replays_rng=options.inner == "eager"
        )
        self._num_returned = num_fwd_outputs
        needed = {node.name: True for node in (*training.forward, *training.backward)}
        with _disable_current_modes():
            if options.costs == "measure":
                known = len(self.compilation.costs)
                self._costs = measure(training.joint, needed, apart=True, known=self.compilation.costs)
                if len(self.compilation.costs) > known:
                    self.compilation.cache.keep_costs(self.compilation.costs)
            else:
                self._costs = estimate(training.joint, needed)
            if self._next is not None:
                return lower(training, self._next, self.compilation.copies)
            # Only dynamo knows which inputs are parameters: later, when another plan is compiled, nobody says so.
            self.parameters = frozenset(static_lifetime_input_indices or ())
            self.plan = self.compilation.plan(self)
        return lower(training, self.plan, self.compilation.copies)

    def _watched_forward(self, forward: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """Let the compilation know what a forward takes, returns and saves."""

        def run(args: list[Any]) -> Any:
            inputs = addresses_of(args)
            results = forward(args)
            self.compilation.forward_ran(inputs, results[: self._num_returned], results[self._num_returned :])
            return results

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def _watched_backward(self, backward: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """Let the compilation know when a backward begins."""

        def run(args: list[Any]) -> Any:
            self.compilation.backward_begins(self)
            return backward(args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run
