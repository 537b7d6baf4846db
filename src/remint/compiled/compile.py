"""`remint.compile`: the backend with keyword arguments, and the plans in view."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import torch

from remint.compiled.compilation import Compilation
from remint.compiled.joint_split import saved_bytes_of
from remint.compiled.options import Options
from remint.graph import Plan
from remint.offload import Offload
from remint.units import format_bytes, format_seconds

M = TypeVar("M", bound=Callable[..., Any])


class Plans:
    """The plans of a compiled model: empty until it first ran.

    There is one per graph with a backward. A graph that runs several times in a step has one for each time.
    """

    def __init__(self, compilation: Compilation) -> None:
        self._compilation = compilation

    @property
    def _plans(self) -> list[Plan]:
        return self._compilation.plans

    def __iter__(self) -> Iterator[Plan]:
        return iter(self._plans)

    def __len__(self) -> int:
        return len(self._plans)

    def __getitem__(self, place: int) -> Plan:
        return self._plans[place]

    @property
    def peak_bytes(self) -> int:
        """The most that any of the plans holds, with what the other graphs hold at that time."""
        return max((plan.peak_bytes for plan in self), default=0)

    @property
    def unplanned_peak_bytes(self) -> int:
        """The peak of the largest step without a budget: what a percentage is taken of. 0 until a step has ended."""
        return max((step.unplanned_peak_bytes for step in self._compilation.known_steps), default=0)

    @property
    def cost(self) -> float:
        """Predicted seconds of all of them."""
        return sum(plan.cost for plan in self)

    @property
    def overhead(self) -> float:
        """Predicted time spent on rematerialization, relative to running every op once."""
        base = sum(plan.graph.cost for plan in self)
        return self.cost / base - 1 if base else 0.0

    @property
    def saved_bytes(self) -> int:
        """What the forwards keep for the backwards, all in all."""
        return sum(map(saved_bytes_of, self))

    @property
    def run(self) -> Any:
        """The figures of the runtime, as of `with remint.budget(...) as run`; None if the steps run by plans."""
        return self._compilation.fallback.run if self.fallback_reason is not None else None

    @property
    def fallback_reason(self) -> str | None:
        """Why the steps run in the runtime, None if they run by plans."""
        return self._compilation.fallback.reason

    def explain(self, limit: int = 20) -> str:
        """Say what is rematerialized when and what it costs, for each plan."""
        return "\n\n".join(plan.explain(limit) for plan in self)

    def __str__(self) -> str:
        if self.fallback_reason is not None:
            return str(self._compilation.fallback)
        if not len(self):
            return "no plan yet: plans are made when the model first runs"
        return (
            f"{len(self)} plan{'s' if len(self) > 1 else ''}: peak {format_bytes(self.peak_bytes)}, "
            f"{format_seconds(self.cost)} (+{self.overhead:.2%})"
        )


def compile(
    model: M,
    *,
    budget: int | float | str,
    planner: str = "auto",
    time_limit: float = 60,
    seed: int = 0,
    costs: Literal["measure", "estimate"] = "measure",
    cache: str | Path | Literal[False] | None = None,
    include_parameters: bool = False,
    inner: Literal["eager", "inductor"] = "eager",
    progress: bool = True,
    offload: Offload | int | str | PathLike[str] | None = None,
    fallback: bool = True,
    fullgraph: bool = False,
) -> M:
    """Compile a model, or a function that computes a loss, so that a training step stays inside a budget.

    >>> import torch
    >>> layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(8)]
    >>> model = compile(torch.nn.Sequential(*layers), budget="75%", costs="estimate", cache=False)
    >>> model(torch.randn(512, 64)).square().mean().backward()
    >>> plan = model.remint_plan[0]
    >>> plan.peak_bytes <= 0.75 * plan.graph.peak_bytes, 0 < plan.overhead < 0.5
    (True, True)

    It is `torch.compile(model, backend="remint", options={...})` with the options as arguments, see `Options`, and with
    `remint_plan`, the plans of its graphs. What is inside the budget is what is inside the model: a loss outside of it
    runs as it is. Every new shape of the inputs is planned anew.

    With `fallback`, steps that no plan covers run in the runtime, inside the same budget: ops between graphs, too many
    graphs or shapes, a budget for which no plan is found. `remint_plan.fallback_reason` says why, and
    `remint_plan.run` has the figures. Without it, a budget for which no plan is found is a `remint.BudgetError`. Plans
    with `inner="inductor"`, `include_parameters` or `offload` have no fallback.

    With `offload`, plans may also copy tensors to a tier below the budget and back, beside compute. The model has to be
    one graph.
    """
    options = Options(
        budget=budget,
        planner=planner,
        time_limit=time_limit,
        seed=seed,
        costs=costs,
        cache=cache,
        include_parameters=include_parameters,
        inner=inner,
        progress=progress,
        offload=offload,
    )
    compilation = Compilation(options, one_graph=fullgraph, fallback=fallback)
    compiled: Any = torch.compile(model, backend=compilation, dynamic=False, fullgraph=fullgraph)
    if isinstance(compiled, torch.nn.Module):
        compiled.forward = functools.partial(compilation.call, compiled.forward)

        def copied(memo: dict[int, Any]) -> Any:
            # What torch copies of a compiled module has neither its plans nor its fallback.
            again = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
            return compile(copy.deepcopy(model, memo), fallback=fallback, fullgraph=fullgraph, **again)

        object.__setattr__(compiled, "__deepcopy__", copied)
    else:
        compiled = functools.wraps(model)(functools.partial(compilation.call, compiled))
    # Not on the model that was given: `setattr` of a compiled module would put it there.
    object.__setattr__(compiled, "remint_plan", Plans(compilation))
    return cast(M, compiled)
