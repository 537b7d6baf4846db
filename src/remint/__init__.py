"""Train any PyTorch model inside a memory budget that holds, by tensor rematerialization."""

from __future__ import annotations

from typing import Any

from remint import runtime_entrance as _entrance
from remint.errors import BudgetError, TraceError
from remint.graph import Compute, Free, Graph, Op, Plan, Tier, verify
from remint.offload import Offload
from remint.planners import frontier, plan
from remint.results import Run, Sweep
from remint.simulator import policy_names, simulate, smallest_budget, sweep
from remint.trace import Trace, TraceBuilder
from remint.version import __version__

__all__ = [
    "BudgetError",
    "Compute",
    "Free",
    "Graph",
    "Offload",
    "Op",
    "Plan",
    "Run",
    "Sweep",
    "Tier",
    "Trace",
    "TraceBuilder",
    "TraceError",
    "__version__",
    "capture",
    "frontier",
    "plan",
    "policy_names",
    "simulate",
    "smallest_budget",
    "sweep",
    "verify",
]

# These need torch: imported when they are first used.
_RUNTIME = ("budget", "evict", "fit", "is_resident", "materialize", "pin", "record")
__all__ += [*_RUNTIME, "advise", "compile"]


def _open_standing_budget(budget_bytes: int | None) -> _entrance.StandingBudget:
    from remint.runtime.standing_budget import StandingBudget

    return StandingBudget(budget_bytes)


# The compiled path and the runtime do not know each other: steps without a plan find the runtime here.
_entrance.register(_open_standing_budget)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"Any", "annotations"})


def __getattr__(name: str) -> Any:
    if name in _RUNTIME:
        from remint import runtime

        globals()[name] = getattr(runtime, name)
        return globals()[name]
    if name == "advise":
        from remint.advice import advise

        globals()[name] = advise
        return advise
    if name == "compile":
        from remint.compiled import compile

        globals()[name] = compile
        return compile
    # The package is callable: it is `capture` itself.
    if name == "capture":
        import remint.capture

        return remint.capture
    raise AttributeError(f"module 'remint' has no attribute {name!r}")
