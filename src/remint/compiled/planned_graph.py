"""One graph of dynamo's, traced by AOTAutograd, planned, and run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch.utils._python_dispatch import _disable_current_modes

from remint.capture.costs import Cost, estimate, measure
from remint.compiled import inductor
from remint.compiled.joint_split import Around, Training, kept_bytes
from remint.compiled.lowering import lower
from remint.graph import Graph, Plan

if TYPE_CHECKING:
    from remint.compiled.compilation import Compilation


class PlannedGraph:
    """A graph of a step. `plan` is None if it has no backward: inference runs as it is."""

    def __init__(self, compilation: Compilation, module: fx.GraphModule) -> None:
        self.compilation = compilation
        self.module = module
        reason: Any = module.compile_subgraph_reason
        self.ends_in_break: bool = reason.graph_break
        self.plan: Plan | None = None
        self.kept_bytes = 0
        self.gradient_bytes = 0
        self._next: Plan | None = None
        self._training: Training | None = None
        self._costs: dict[str, Cost] = {}
        self._num_returned = 0
        self._compiled: Callable[..., Any] | None = None

    def compile(self, inputs: Sequence[Any]) -> None:
        """Trace and plan, and keep what runs it."""
        if self.compilation.options.inner == "inductor":
            self._compiled = inductor.compile(self.module, inputs, self._partition)
            return
        backend = aot_autograd(
            fw_compiler=lambda module, inputs: self._counted(boxed_nop(module, inputs)),
            bw_compiler=boxed_nop,
            inference_compiler=boxed_nop,
            partition_fn=self._partition,
            keep_inference_input_mutations=True,
        )
        self._compiled = backend(self.module, inputs)

    def run(self, *args: Any) -> Any:
        """Run the forward; autograd runs the backward."""
        if self.plan is not None:
            self.compilation.begins(self)
            if self._next is not None:
                self.compile(args)
        assert self._compiled is not None
        return self._compiled(*args)

    def replace(self, plan: Plan) -> None:
        """Go by another plan from the next run on."""
        self._next = plan

    def graph_of(self, around: Around) -> Graph:
        """Return what is planned, in a step that holds this around it."""
        assert self._training is not None
        include = self.compilation.options.include_parameters
        return self._training.graph(self._costs, around=around, include_parameters=include)

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
        needed = {node.name: True for node in (*training.forward, *training.backward)}
        with _disable_current_modes():
            if options.costs == "measure":
                known = len(self.compilation.costs)
                self._costs = measure(training.joint, needed, apart=True, known=self.compilation.costs)
                if len(self.compilation.costs) > known:
                    self.compilation.cache.keep_costs(self.compilation.costs)
            else:
                self._costs = estimate(training.joint, needed)
            self.gradient_bytes = training.gradient_bytes(static_lifetime_input_indices or [])
            plan = self._next if self._next is not None else self.compilation.plan(self)
        self.plan, self._next = plan, None
        self.kept_bytes = kept_bytes(plan)
        self._num_returned = num_fwd_outputs
        return lower(training, plan)

    def _counted(self, forward: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """Let the compilation know how long what a forward saved is alive."""

        def run(args: list[Any]) -> Any:
            inputs = {arg.untyped_storage()._cdata for arg in args if isinstance(arg, torch.Tensor)}
            results = forward(args)
            # A graph can save nothing but its inputs; then what it returns tells.
            for tensor in (*results[self._num_returned :], *results[: self._num_returned]):
                if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in inputs:
                    self.compilation.saved(self, tensor)
                    break
            return results

        run._boxed_call = True  # type: ignore[attr-defined]
        return run
