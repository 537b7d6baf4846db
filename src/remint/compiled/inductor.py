"""A plan's two graphs, compiled by inductor.

Inductor asks a partitioner what the forward saves. It gets the plan's forward and backward; within each it fuses,
orders and allocates as it sees fit. So what is saved for the backward is what the plan says; the exact peak is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from torch import fx
from torch._inductor.compile_fx import compile_fx
from torch._inductor.custom_graph_pass import CustomPartitionerFn


class _Partitioner(CustomPartitionerFn):
    def __init__(self, partition: Callable[..., tuple[fx.GraphModule, fx.GraphModule]]) -> None:
        self.partition = partition

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        return self.partition(gm, joint_inputs, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Partitioner:
        return self  # inductor copies its settings to write them down

    def uuid(self) -> None:
        """No code of inductor's is kept: it would be found by the model, which does not know the budget."""
        return


def compile(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    partition: Callable[..., tuple[fx.GraphModule, fx.GraphModule]],
) -> Callable[..., Any]:
    """Compile a graph with inductor, split by `partition`."""
    patches = {"custom_partitioner_fn": _Partitioner(partition), "fx_graph_cache": False}
    return cast(Callable[..., Any], compile_fx(module, list(inputs), config_patches=patches))
