"""Random programs that do more than those of `random_tensors`: what they write, and from where.

Added are ops with several `out=` tensors, user ops that write their arguments through numpy, writes to views, steps in
a thread outside of the budget, and budgets within the budget. The steps are (name, a, b) again. A step in a thread does
one of the ordinary steps there, and the program waits for it, so that there is one right result.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from hypothesis import strategies

from tests.support import random_tensors

Tensor = torch.Tensor
Step = tuple[str, int, int]


@torch.library.custom_op("remint_random::scale_", mutates_args=("x",))
def scale_(x: Tensor) -> None:
    array = x.numpy()
    array *= 0.5


@torch.library.custom_op("remint_random::exchange_", mutates_args=("x", "y"))
def exchange_(x: Tensor, y: Tensor) -> None:
    a, b = x.numpy(), y.numpy()
    first = a.copy()
    a[...] = b
    b[...] = first


@torch.library.custom_op("remint_random::by_numpy", mutates_args=())
def by_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy() * 2 + 1)


@torch.library.custom_op("remint_random::with_scratch_", mutates_args=("x",))
def with_scratch_(x: Tensor) -> None:
    x.copy_(torch.cat([x.reshape(-1), x.reshape(-1)]).cumsum(0)[: x.numel()].tanh().reshape(x.shape))


def _ends(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Equally long parts of two tensors, as views. RuntimeError if there is no such view."""
    count = min(a.numel(), b.numel())
    return a.detach().view(-1)[:count], b.detach().view(-1)[-count:]


def _rows(like: Tensor) -> Tensor:
    return (torch.arange(5.0 * like.numel()).reshape(5, -1) * 37 % 11).sin()


def _exchange(a: Tensor, b: Tensor) -> None:
    x, y = _ends(a, b)
    # A user op may not be given the same memory twice.
    if a.untyped_storage()._cdata != b.untyped_storage()._cdata:
        exchange_(x, y)


def _aminmax(a: Tensor, b: Tensor) -> None:
    x, y = _ends(a, b)
    torch.aminmax(_rows(x), dim=0, out=(x, y))


def _sort(a: Tensor, b: Tensor) -> None:
    x, y = _ends(a, b)
    torch.sort(y.clone(), descending=True, out=(x, torch.empty_like(x, dtype=torch.int64)))


MAKE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "user op": lambda a, b: by_numpy(a.detach()),
    "user op of a view": lambda a, b: by_numpy(a.detach().reshape(-1)[::2]),
    "read as list": lambda a, b: torch.tensor(a.detach().reshape(-1)[:40].tolist()) + b.mean(),
    "read as array": lambda a, b: torch.from_numpy(a.detach().numpy().copy()) * 2,
}
WRITE: dict[str, Callable[[Tensor, Tensor], object]] = {
    "aminmax out": _aminmax,
    "sort out": _sort,
    "user op writes": lambda a, b: scale_(a.detach()),
    "user op writes a view": lambda a, b: scale_(a.detach().view(-1)[1::2]),
    "user op writes two": _exchange,
    "user op with scratch": lambda a, b: with_scratch_(a.detach()),
    "view add_": lambda a, b: a.reshape(-1)[1:].add_(b.mean()),
    "strided mul_": lambda a, b: a.reshape(-1)[::3].mul_(0.9),
    "transposed add_": lambda a, b: a.transpose(0, -1)[:1].add_(1.5),
    "diagonal fill_": lambda a, b: a.diagonal().fill_(0.25),
    "index_put_": lambda a, b: a.view(-1).index_put_((torch.arange(0, a.numel(), 4),), b.mean()),
    "split and write": lambda a, b: [part.mul_(1.25) for part in a.detach().view(-1).split(20)[:2]],
    "foreach views": lambda a, b: torch._foreach_mul_(list(a.detach().view(-1).split(20)), 0.75),
}
OTHER = ("thread", "open budget", "close budget")
# The steps that a thread may do, in an order that does not change.
IN_THREAD = tuple(
    sorted({*MAKE, *WRITE, *random_tensors.MAKE, *random_tensors.VIEW, *random_tensors.WRITE, "backward"})
)
NAMES = (*random_tensors.NAMES, *MAKE, *WRITE, *WRITE, *OTHER, "thread", "thread")

programs = strategies.lists(
    strategies.tuples(strategies.sampled_from(NAMES), strategies.integers(0, 63), strategies.integers(0, 63)),
    min_size=1,
    max_size=30,
)


class Program:
    """One execution: `inner` opens a budget within the one that is open, or does nothing."""

    def __init__(self, constants: list[Tensor], inner: Callable[[], AbstractContextManager[object]]) -> None:
        torch.manual_seed(0)
        self._inner = inner
        self._leaves = [torch.randn(12, 10, requires_grad=True), torch.randn(40), *constants]
        self._alive: list[Tensor] = list(self._leaves)
        self._found: list[object] = []
        self._budgets: list[contextlib.ExitStack] = []

    def run(self, steps: list[Step]) -> list[object]:
        """Return everything alive at the end, gradients included, and the errors on the way."""
        try:
            for name, a, b in steps:
                self._guarded(name, a, b)
        finally:
            while self._budgets:
                self._budgets.pop().close()
        self._found += [t.detach() for t in self._alive]
        self._found += [leaf.grad for leaf in self._leaves if leaf.grad is not None]
        return self._found

    def _guarded(self, name: str, a: int, b: int) -> None:
        try:
            self._step(name, a, b)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, IndexError) as error:
            # What remint says is never what PyTorch says.
            found = str(error) if "remint" in str(error) or "engine" in str(error) else type(error).__name__
            self._found.append(found)

    def _step(self, name: str, a: int, b: int) -> None:
        x, y = self._alive[a % len(self._alive)], self._alive[b % len(self._alive)]
        if name in MAKE:
            self._alive.append(MAKE[name](x, y))
        elif name in WRITE:
            WRITE[name](x, y)
        elif name == "thread":
            self._in_thread(IN_THREAD[(a * 64 + b) % len(IN_THREAD)], a, b)
        elif name == "open budget":
            self._budgets.append(contextlib.ExitStack())
            self._budgets[-1].enter_context(self._inner())
        elif name == "close budget":
            if self._budgets:
                self._budgets.pop().close()
        else:
            random_tensors._step(name, x, y, self._alive, self._leaves, self._found)

    def _in_thread(self, name: str, a: int, b: int) -> None:
        """Do a step in a new thread, which is in no budget."""
        errors: list[BaseException] = []

        def work() -> None:
            try:
                self._guarded(name, a, b)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]


same = random_tensors.same
