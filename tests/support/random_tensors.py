"""Random programs on tensors: views, writes in place, random numbers, several outputs, freed tensors, backward.

Most tensors are larger than a number, which remint leaves outside of the arena. A program is a list of steps,
(name, a, b): `a` and `b` choose tensors among those that are alive. `run` executes one and returns every number that
came out of it, or the errors that PyTorch raised on the way.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import strategies
from torch.nn import functional

Tensor = torch.Tensor


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return a.reshape(-1)[:24, None] @ b.reshape(-1)[None, :24]


def _batch_norm(a: Tensor, b: Tensor) -> Tensor:
    mean, variance = torch.zeros(1), torch.ones(1)
    return functional.batch_norm(a.reshape(-1, 1), mean, variance, training=a.numel() > 1) + mean * b.sum()


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


# Each makes new bytes, or a list of tensors that have some.
MAKE: dict[str, Callable[[Tensor, Tensor], Tensor | tuple[Tensor, ...]]] = {
    "add": lambda a, b: a + b.mean(),
    "multiply": lambda a, b: a * b.reshape(-1)[0],
    "sigmoid": lambda a, b: a.sigmoid(),
    "tanh": lambda a, b: a.tanh(),
    "outer": _outer,
    "softmax": lambda a, b: a.reshape(-1).softmax(0),
    "dropout": lambda a, b: functional.dropout(a, 0.3),
    "rand": lambda a, b: torch.rand_like(a) * b.sum(),
    "normal": lambda a, b: torch.randn(9, 8) + a.mean(),
    "own generator": lambda a, b: torch.rand(40, generator=torch.Generator().manual_seed(3)) * b.sum(),
    "cat": lambda a, b: torch.cat([a.reshape(-1)[:32], b.reshape(-1)[:32]]),
    "batch norm": _batch_norm,
    "square": lambda a, b: _Square.apply(a),
    "sort": lambda a, b: a.reshape(-1).sort().values,
    "max": lambda a, b: a.reshape(1, -1).max(1).values,
    "variance": lambda a, b: torch.var_mean(a.reshape(1, -1), 1, correction=0),
    "cumsum": lambda a, b: a.reshape(-1).cumsum(0),
    "index": lambda a, b: a.reshape(-1)[torch.arange(0, 40, 2) % a.numel()],
    "where": lambda a, b: torch.where(a > 0, a, b.mean()),
    "clone": lambda a, b: a.clone(),
    "bfloat16": lambda a, b: a.bfloat16().float(),
    "zeros": lambda a, b: torch.zeros(6, 5) + a.sum(),
    "foreach": lambda a, b: tuple(torch._foreach_mul([a, b], 0.5)),
}
VIEW: dict[str, Callable[[Tensor, Tensor], Tensor | tuple[Tensor, ...]]] = {
    "flat": lambda a, b: a.reshape(-1),
    "transposed": lambda a, b: a.transpose(0, -1),
    "half": lambda a, b: a.reshape(-1)[: max(1, a.numel() // 2)],
    "every second": lambda a, b: a.reshape(-1)[::2],
    "expanded": lambda a, b: a.reshape(1, -1)[:, :40].expand(2, -1),
    "parts": lambda a, b: a.reshape(-1).split(20)[:3],
    "strided": lambda a, b: a.as_strided((2, 2), (1, 0)),
    "detached": lambda a, b: a.detach(),
    "alias": lambda a, b: a.view_as(a),
}
WRITE: dict[str, Callable[[Tensor, Tensor], object]] = {
    "add_": lambda a, b: a.add_(b.mean()),
    "mul_": lambda a, b: a.mul_(0.75),
    "relu_": lambda a, b: a.relu_(),
    "zero_": lambda a, b: a.zero_(),
    "copy_": lambda a, b: a.copy_(b.mean()),
    "normal_": lambda a, b: a.normal_(),
    "set item": lambda a, b: a.reshape(-1).__setitem__(0, b.sum()),
    "masked_fill_": lambda a, b: a.masked_fill_(a < 0, 0.5),
    "out": lambda a, b: torch.mul(b.detach().mean(), 2.0, out=a),
    "larger out": lambda a, b: torch.cat([b.detach().reshape(-1)[:60].clone()] * 2, out=a),
    "without grad": lambda a, b: a.data.mul_(0.5),
    "foreach_": lambda a, b: torch._foreach_add_([a, b], 0.25),
}
OTHER = ("free", "backward", "step", "hold gradient", "new leaf")
NAMES = (*MAKE, *VIEW, *WRITE, *OTHER, *MAKE)  # what makes something twice: there is more to write over, then

programs = strategies.lists(
    strategies.tuples(strategies.sampled_from(NAMES), strategies.integers(0, 15), strategies.integers(0, 15)),
    min_size=1,
    max_size=30,
)


def run(program: list[tuple[str, int, int]], constants: list[Tensor]) -> list[object]:
    """Execute `program`; return everything alive at the end, gradients included, and the errors on the way."""
    torch.manual_seed(0)
    leaves = [torch.randn(12, 10, requires_grad=True), torch.randn(40), *constants]
    alive: list[Tensor] = list(leaves)
    found: list[object] = []
    for name, a, b in program:
        try:
            _step(name, alive[a % len(alive)], alive[b % len(alive)], alive, leaves, found)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, IndexError) as error:
            found.append(type(error).__name__)
    found += [t.detach() for t in alive]
    found += [leaf.grad for leaf in leaves if leaf.grad is not None]
    return found


def _step(name: str, x: Tensor, y: Tensor, alive: list[Tensor], leaves: list[Tensor], found: list[object]) -> None:
    if name in MAKE or name in VIEW:
        made = (MAKE | VIEW)[name](x, y)
        alive += made if isinstance(made, tuple) else (made,)
    elif name in WRITE:
        WRITE[name](x, y)
    elif name == "free":
        if len(alive) > 1:
            alive[:] = [t for t in alive if t is not x]
    elif name == "backward":
        (x * x).sum().backward(retain_graph=True)
    elif name == "step":
        with torch.no_grad():
            for leaf in leaves:
                if leaf.grad is not None:
                    leaf.sub_(leaf.grad, alpha=0.1)
    elif name == "hold gradient":
        inputs = [leaf for leaf in leaves if leaf.requires_grad]
        grads = torch.autograd.grad(x.sum(), inputs, allow_unused=True, create_graph=True)
        alive += [grad for grad in grads if grad is not None]
    elif name == "new leaf":
        leaves.append(x.detach().clone().requires_grad_())
        alive.append(leaves[-1])


def same(a: object, b: object) -> bool:
    """Whether two results are the same bits; NaN is the same as NaN."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return a == b
    return a.shape == b.shape and torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())
