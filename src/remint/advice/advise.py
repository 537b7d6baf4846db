"""`remint.advise`: which budget a training step can have, and what it costs."""

from __future__ import annotations

import os
from collections.abc import Callable

from remint.advice.answers import Question
from remint.advice.tier import Tier
from remint.advice.watch import Watch
from remint.errors import BudgetError
from remint.offload import Offload
from remint.results.advice import Advice

# More steps than a watch ever needs.
_MOST_STEPS = 100


def advise(
    step: Callable[[], object],
    *,
    fits: int | str | None = None,
    accept: float = 1.1,
    steps: int = 3,
    try_it: bool = True,
    plan: bool = True,
    offload: Offload | int | str | os.PathLike[str] | None = None,
) -> Advice:
    """Run a few training steps, and say which budget to give them.

    The answer says what a step needs, what holds the memory at its peak, how much slower it is in smaller budgets,
    the smallest one, and which one to use. `print` it, or write it as a page with its `report(path)`.

    Args:
        step: runs one training step. It is called 20 to 60 times, and trains each time.
        fits: ask about this budget: bytes, a string such as `"24GiB"`, or a percentage of the peak.
        accept: recommend the smallest budget in which a step takes at most this many times as long as a plain one; or
            as in the quickest budget, where watching the ops takes that long by itself.
        steps: how many steps are timed and recorded.
        try_it: run some steps in the budget that is recommended, too.
        plan: plan the step in the smaller budgets, as a budget does once its step is learned. Takes up to 4 seconds of
            CPU time for each.
        offload: also say what each budget costs with this second tier of memory, as `remint.budget` takes it. Its
            speed is measured.

    Budgets are for `with remint.budget(...)` around a training loop whose model was made before. The weights are
    outside then, and the state of the optimizer, which its first step makes, is inside.

    >>> import torch
    >>> model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    >>> def step():
    ...     model.zero_grad()
    ...     model(torch.ones(2048, 64)).square().mean().backward()
    >>> advice = advise(step, fits="70%", try_it=False, plan=False)
    >>> advice.fits, advice.recommended.budget_bytes < advice.peak_bytes
    (True, True)
    """
    if steps < 1:
        raise ValueError(f"steps is 1 or more, not {steps}")
    name = getattr(step, "__name__", type(step).__name__)
    tier = None if offload is None else Tier.of(offload)
    question = Question(name, is_script=False, fits=fits, accepted=accept, try_it=try_it, plan=plan, offload=tier)
    watch = Watch(steps=steps, try_budget=question.try_budget)
    try:
        for _ in range(_MOST_STEPS):
            step()
            watch.step_ended()
            if watch.done:
                break
    except BudgetError as error:
        watch.close(error)
        if watch.trial is None:
            raise
    finally:
        watch.close()
    return question.with_trial(watch)
