"""`remint.fit`: the largest size that trains inside a budget, and how fast each size is.

The headline experiment of Checkmate and DTR, as a tool: sizes are doubled until one does not fit, then the gap is
halved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from remint.defaults import POLICY
from remint.errors import BudgetError
from remint.results.largest_fit import Attempt, Fit, find_largest
from remint.runtime.budget import budget as open_budget
from remint.runtime.rank import this_rank


def fit(
    step: Callable[[int], object],
    sizes: Sequence[int],
    *,
    budget: int | str,
    policy: str = POLICY,
    repeats: int = 1,
    progress: Callable[[Attempt], object] | None = None,
) -> Fit:
    """Return the largest of `sizes` for which `step(size)` runs inside the budget.

    Args:
        step: trains one step at a size. Tensors that it makes count: make the model outside if its weights shall not.
        sizes: candidates, such as `range(8, 513)`.
        budget: bytes, as an int or a string such as `"2GiB"`.
        policy: chooses what is evicted.
        repeats: times each step is run; the fastest counts.
        progress: called with each attempt.

    >>> import torch
    >>> model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    >>> found = fit(lambda n: model(torch.randn(n, 64)).sum().backward(), [128, 512, 1024], budget="1MiB")
    >>> found.largest >= 512, found.attempts[0].fits
    (True, True)
    """
    if (rank := this_rank()) is not None:
        raise ValueError(
            f"this is {rank} of {rank.count}, which would try different sizes and wait for each other: use "
            "`remint fit --nproc N train.py …`, or `torchrun … -m remint fit train.py …`"
        )
    if repeats < 1:
        raise ValueError(f"repeats is 1 or more, not {repeats}")

    def attempt(size: int) -> Attempt:
        fastest = float("inf")
        for _ in range(repeats):
            began = time.perf_counter()
            try:
                with open_budget(budget, policy=policy) as run:
                    step(size)
            except BudgetError as error:
                return Attempt(size=size, fits=False, failure=str(error))
            fastest = min(fastest, time.perf_counter() - began)
        return Attempt(
            size=size,
            fits=True,
            seconds=fastest,
            peak_bytes=run.peak_bytes,
            slowdown=run.slowdown,
            num_rematerializations=run.num_rematerializations,
        )

    return find_largest(attempt, sizes, budget=budget, progress=progress)
