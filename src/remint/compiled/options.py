"""The options of the backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any

from remint.compiled.errors import OptionError
from remint.offload import Offload, parse_offload
from remint.planners import PLANNERS, PLANNERS_WITH_TIER
from remint.units import parse_budget


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `torch.compile(..., backend="remint", options={...})` takes.

    Attributes:
        budget: bytes, as an int or a string such as `"300MiB"`, or a part of the peak of the step without a budget,
            such as `"50%"`. It covers what the step allocates: activations, gradients, workspaces.
        planner: one of `remint.planners.PLANNERS`.
        time_limit: seconds to plan one graph at most.
        seed: for planners that draw.
        costs: `"measure"` each distinct op here, one at a time, or `"estimate"` them without running anything.
        cache: the directory of plans and measured costs, `False` for none. By default the one of torch's compiler.
        include_parameters: whether parameters, buffers and inputs count, too.
        inner: `"eager"` runs the plan as it is. `"inductor"` compiles its two graphs further.
        progress: whether a long solve prints what it has found so far.
        offload: a tier below the budget, as of `remint.budget`: bytes, `"disk"`, a folder or a `remint.Offload`. Plans
            may copy tensors there and back, beside compute. For models that are one graph, with `inner="eager"`.
    """

    budget: int | float | str
    planner: str = "auto"
    time_limit: float = 60
    seed: int = 0
    costs: str = "measure"
    cache: str | Path | bool | None = None
    include_parameters: bool = False
    inner: str = "eager"
    progress: bool = True
    offload: Offload | int | str | PathLike[str] | None = None

    def __post_init__(self) -> None:
        try:
            if parse_budget(self.budget, peak_bytes=10**12) == 0:
                raise ValueError(f"budget {self.budget!r} holds nothing")
        except ValueError as error:
            raise OptionError(str(error)) from None
        _check("planner", self.planner, PLANNERS)
        _check("costs", self.costs, ("measure", "estimate"))
        _check("inner", self.inner, ("eager", "inductor"))
        for name in ("include_parameters", "progress"):
            _check(name, getattr(self, name), (True, False))
        if isinstance(self.time_limit, bool) or not isinstance(self.time_limit, int | float) or self.time_limit <= 0:
            raise OptionError(f"time_limit is a number of seconds above 0, not {self.time_limit!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise OptionError(f"seed is a whole number, not {self.seed!r}")
        try:
            object.__setattr__(self, "offload", parse_offload(self.offload))
        except ValueError as error:
            raise OptionError(str(error)) from None
        if self.offload is not None and self.inner != "eager":
            raise OptionError('offload= runs plans as they are: leave inner="inductor" out, or offload=')
        if self.offload is not None and self.planner not in PLANNERS_WITH_TIER:
            raise OptionError(
                f"{self.planner} knows no tier: use {', '.join(PLANNERS_WITH_TIER)}, or leave offload= out"
            )
        if self.cache is True or not isinstance(self.cache, str | Path | bool | None):
            raise OptionError(f"cache is a directory, or False for none, not {self.cache!r}")

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> Options:
        """Make options of the dict that torch.compile was given."""
        options = options or {}
        known = [field.name for field in fields(cls)]
        unknown = [name for name in options if name not in known]
        if unknown:
            raise OptionError(f"the remint backend has no option {unknown[0]!r}: its options are {', '.join(known)}")
        if "budget" not in options:
            raise OptionError(
                'the remint backend needs a budget: torch.compile(model, backend="remint", '
                'options={"budget": "300MiB"}), or "50%" of the peak of the step'
            )
        return cls(**options)


def _check(name: str, value: Any, possible: Any) -> None:
    if value not in possible:
        raise OptionError(f"{name} is one of {', '.join(map(repr, possible))}, not {value!r}")
