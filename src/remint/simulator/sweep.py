"""Many simulations at once: every trace under every budget with every policy."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from remint.results.run import Run
from remint.results.sweep import Row, Sweep
from remint.simulator.simulate import Memory, policy_names, simulate
from remint.trace import Trace
from remint.units import parse_budget


def sweep(
    traces: Mapping[str, Trace] | Sequence[str | os.PathLike[str]] | Trace,
    *,
    budgets: Sequence[int | str] = ("90%", "70%", "50%", "30%"),
    policies: Sequence[str] | str = "all",
    memory: Memory = "ideal",
    jobs: int = 2,
    progress: bool = False,
    **options: Any,
) -> Sweep:
    """Simulate every trace with every policy under every budget, `jobs` at a time.

    The simulations are native code that lets go of the interpreter, so threads keep all cores busy and share the
    traces. `options` are those of `simulate`.

    >>> from remint import generators
    >>> rows = sweep({"chain": generators.chain(64)}, budgets=["50%", "25%"], policies=["lru", "dtr-eq"])
    >>> [(row["trace"], row["policy"], row["budget"], row["status"]) for row in rows][:2]
    [('chain', 'lru', '50%', 'ok'), ('chain', 'lru', '25%', 'thrash')]
    """
    if jobs < 1:
        raise ValueError(f"jobs is 1 or more, not {jobs}")
    named = _named_traces(traces)
    names = policy_names(memory) if policies == "all" else [policies] if isinstance(policies, str) else policies
    cases = [(name, policy, budget) for name in named for policy in names for budget in budgets]
    # A sweep that cannot be right fails before it starts.
    for trace in named.values():
        for budget in budgets:
            parse_budget(budget, peak_bytes=trace.peak_bytes)

    def run(case: tuple[str, str, int | str]) -> Row:
        name, policy, budget = case
        result: Run = simulate(
            named[name], budget=budget, policy=policy, memory=memory, **{"timeline": False, **options}
        )
        return {"trace": name, "budget": budget} | result.summary()

    rows: dict[int, Row] = {}
    with _progress(enabled=progress) as bar, ThreadPoolExecutor(jobs) as pool:
        task = bar.add_task("simulating", total=len(cases))
        futures = {pool.submit(run, case): index for index, case in enumerate(cases)}
        try:
            for future in as_completed(futures):
                rows[futures[future]] = future.result()
                bar.advance(task)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return Sweep([rows[index] for index in range(len(cases))])


def _named_traces(traces: Mapping[str, Trace] | Sequence[str | os.PathLike[str]] | Trace) -> dict[str, Trace]:
    if isinstance(traces, Trace):
        return {"trace": traces}
    if isinstance(traces, Mapping):
        return dict(traces)
    return {Path(path).name.split(".")[0]: Trace.load(path) for path in traces}


def _progress(*, enabled: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # On stderr, so that what a command prints can be piped.
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not enabled)


def smallest_budget(
    trace: Trace, *, policy: str = "dtr-eq", memory: Memory = "ideal", steps: int = 100, **options: Any
) -> int | None:
    """Return the smallest budget that still works, in steps of `peak_bytes / steps`; None if even the peak does not.

    Greedy policies are not monotone, so every budget from the one returned up to the peak was run and found `ok`.

    >>> from remint import generators
    >>> trace = generators.chain(64)
    >>> smallest_budget(trace, policy="dtr-eq") < trace.peak_bytes // 3
    True
    """
    smallest = None
    for step in range(steps, 0, -1):
        budget = trace.peak_bytes * step // steps
        run = simulate(trace, budget=budget, policy=policy, memory=memory, **{"timeline": False, **options})
        if run.status != "ok":
            break
        smallest = budget
    return smallest
