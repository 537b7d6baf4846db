"""Steps that no plan covers run in the runtime, inside the same budget.

A thread is inside from the call of the model to the end of the backward pass. The optimizer is outside, as its state
is no part of the budget of a compiled model. The runtime is found through `remint.runtime_entrance`.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from remint.runtime_entrance import StandingBudget, open_budget
from remint.units import format_bytes, parse_budget


class Fallback:
    """The runtime for one compiled model: `reason` says why its steps run there, None if they run by plans."""

    def __init__(self, budget: int | float | str, *, tells: bool) -> None:
        self.reason: str | None = None
        self._asked = budget
        self._tells = tells
        self._peak_bytes = 0  # of a step without a budget; 0: it is not known yet
        self._budget: StandingBudget | None = None
        self._measures = False  # whether the budget that is open has no limit, to find out the peak of a step
        self._step_ended = False
        self._thread = threading.local()

    @property
    def run(self) -> Any:
        """The figures of the budget, as of `with remint.budget(...) as run`; None before the first step in it."""
        return None if self._budget is None else self._budget.run

    @property
    def is_percentage(self) -> bool:
        """Whether the budget is a part of the peak of the step."""
        return isinstance(self._asked, str) and "%" in self._asked

    def begin(self, reason: str, peak_bytes: int = 0) -> None:
        """Run all steps from now on in the runtime.

        `peak_bytes` is the peak of the step without a budget, if it is known. If it is not, and the budget is a part of
        it, the next step runs without a limit.
        """
        if self.reason is not None:
            return
        self.reason = reason
        self._peak_bytes = peak_bytes
        if self._tells:
            print(f"remint: {reason}: the steps run in the runtime, inside the same budget", file=sys.stderr)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a model inside the budget. Calls without gradients are outside."""
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        self.enter()
        try:
            results = function(*args, **kwargs)
        except BaseException:
            self.leave()
            raise
        self._leave_after_backward_of(results)
        return results

    def enter(self) -> None:
        """Let what this thread does from now on be inside the budget."""
        if self._measures and self._step_ended:
            self._peak_bytes = self.run.peak_bytes
            self._close()
        if self._budget is None:
            self._measures = self.is_percentage and not self._peak_bytes
            limit = None if self._measures else parse_budget(self._asked, peak_bytes=self._peak_bytes)
            self._budget = open_budget(limit)
            # At the exit of the process nobody needs its tensors any more.
            weakref.finalize(self, self._budget.close).atexit = False
            self._step_ended = False
        if not self.is_inside:
            self._budget.enter()
            self._thread.inside = self._budget

    def leave(self) -> None:
        """Let what this thread does from now on be outside."""
        if self.is_inside:
            self._thread.inside.leave()
        self._thread.inside = None
        self._thread.leaves = False

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Leave for a while: what is compiled or measured is no part of the step."""
        inside = self.is_inside
        self.leave()
        try:
            yield
        finally:
            if inside:
                self.enter()

    def _leave_after_backward(self) -> None:
        """Leave when the backward pass that runs now is over."""
        # PyTorch sets the thread-local state anew for each node, so nothing can be left before that.
        if self.is_inside and not getattr(self._thread, "leaves", False):
            self._thread.leaves = True
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ended)

    def _close(self) -> None:
        assert self._budget is not None
        self.leave()
        self._budget.close()
        self._budget = None

    @property
    def is_inside(self) -> bool:
        """Whether this thread is inside."""
        return self._budget is not None and getattr(self._thread, "inside", None) is self._budget

    def _backward_ended(self) -> None:
        self._step_ended = True
        self.leave()

    def _leave_after_backward_of(self, results: Any) -> None:
        tensors = _with_gradients(results)
        for tensor in tensors:
            tensor.register_hook(lambda _gradient: self._leave_after_backward())  # type: ignore[no-untyped-call]
        if not tensors:
            self.leave()

    def __str__(self) -> str:
        run = self.run
        figures = "" if run is None else f", peak {format_bytes(run.peak_bytes)}, slowdown {run.slowdown:.2f}"
        return f"no plan: {self.reason}. The steps run in the runtime{figures}"


def has_gradients(results: Any) -> bool:
    """Whether a backward can begin with something of these results."""
    return bool(_with_gradients(results))


def _with_gradients(results: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
