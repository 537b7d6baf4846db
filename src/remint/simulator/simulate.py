"""Traces on the null device: the engine runs them, nothing is computed."""

from __future__ import annotations

import math
import os
from typing import Literal, get_args

from remint import _core
from remint.engine_options import Deallocation, EngineOptions
from remint.offload import Offload, parse_offload
from remint.results.run import Run, Status, Timeline, tier_figures
from remint.simulator.explain import block_log, rematerialized
from remint.trace import Trace
from remint.units import format_bytes, parse_budget

Memory = Literal["ideal", "arena"]
Inplace = Literal["copy", "ghost"]


def policy_names(memory: Memory = "arena") -> tuple[str, ...]:
    """Return the names of all policies that work on `memory`."""
    return tuple(name for name in _core.policy_names() if memory == "arena" or not _core.policy_needs_arena(name))


def simulate(
    trace: Trace | str | os.PathLike[str],
    *,
    budget: int | str,
    policy: str = "dtr-eq",
    memory: Memory = "ideal",
    deallocation: Deallocation = "eager",
    inplace: Inplace | None = None,
    placed: bool = True,
    partition: bool | None = None,
    moving: bool | None = None,
    ignore_small: float = 0.0,
    time_exponent: float = 1.0,
    sample: bool = False,
    seed: int = 0,
    max_slowdown: float = 2.0,
    max_depth: int | None = None,
    offload: Offload | int | str | None = None,
    timeline: bool = True,
    events: bool = False,
    blocks: bool = False,
    check: bool = False,
) -> Run:
    """Run `trace` under a budget and return what it costs.

    The budget is in bytes (`"2GiB"`, an int), or a percentage of `trace.peak_bytes`. A run that does not fit, or that
    rematerializes without end, is a result too: see `Run.status`.

    Args:
        trace: what to run, or the file it is in.
        budget: bytes, or a percentage of the trace's own peak.
        policy: chooses what is evicted; `policy_names()` lists them. `coop` and `dte` need `memory="arena"`.
        memory: `"ideal"` counts bytes, with the semantics of DTR's own simulator; `"arena"` gives them addresses,
            with the semantics of a real run.
        deallocation: what happens when the program releases a tensor.
        inplace: `"ghost"` (arena only, its default) writes in place, `"copy"` makes a fresh storage.
        placed: False counts the bytes of the arena, as if every request found a place: what a budget does with a step
            that it has learned, before it looks for addresses. Needs `moving=False, partition=False`.
        partition: cheap and expensive bytes at two ends of the arena; by default only with `coop`.
        moving: where no free block of the arena is large enough, blocks may also be moved together, as in a real run
            (the moves take no simulated time, but are counted); on by default.
        ignore_small: pass over candidates smaller than this fraction of their mean size.
        time_exponent: with `clairvoyant`, how much the time until a value is needed counts.
        sample: score only sqrt(n) candidates drawn at random. Quick, and worse where memory is tight.
        seed: for `random` and `sample`.
        max_slowdown: a run that gets slower than this ends as `thrash`.
        max_depth: on the arena, pin a tensor that would take a longer chain of ops than this to rematerialize; 10,000
            by default.
        offload: a second tier of so many bytes, on the arena; an `Offload` says how quick it is, too. Tensors that
            leave memory are recomputed or fetched from there, whichever is quicker. Pinned tensors can be offloaded
            unless their address is known elsewhere. The program waits for every transfer.
        timeline: keep the bytes in use after each op.
        events: keep the list of all events, and which op was rematerialized for which (`run.by_op()`).
        blocks: keep these, and the log of every block of the arena: for reports.
        check: check the engine's books after every event. Slow; for tests.

    >>> from remint import generators
    >>> run = simulate(generators.chain(64), budget="50%")
    >>> run.status, run.peak_bytes <= run.budget_bytes, run.num_rematerializations > 0
    ('ok', True, True)
    """
    if not isinstance(trace, Trace):
        trace = Trace.load(trace)
    if not max_slowdown >= 1:
        raise ValueError(f"max_slowdown is 1 or more, not {max_slowdown}")
    inplace = inplace or ("ghost" if memory == "arena" else "copy")
    _check_choice("memory", memory, get_args(Memory))
    _check_choice("inplace", inplace, get_args(Inplace))
    if inplace == "ghost" and memory == "ideal":
        raise ValueError("inplace='ghost' needs memory='arena'; ideal memory follows DTR's reference, which copies")
    tier = parse_offload(offload)
    if tier is not None and memory == "ideal":
        raise ValueError("offload= needs memory='arena'; ideal memory follows DTR's reference, which recomputes")
    if tier is not None and tier.bytes is None:
        raise ValueError('a simulation has no disk: say how much it holds, as in offload="16GiB"')
    facts = _core.trace_facts(trace)
    budget_bytes = parse_budget(budget, peak_bytes=facts.peak_bytes)
    options = EngineOptions(
        policy=policy,
        deallocation=deallocation,
        partition=partition,
        moving=moving,
        ignore_small=ignore_small,
        time_exponent=time_exponent,
        sample=sample,
        seed=seed,
        max_depth=max_depth,
        max_rematerialized_ns=int((max_slowdown - 1) * facts.computed_ns) if max_slowdown < math.inf else None,
        check=check,
        **({} if tier is None else tier.keywords()),
    )
    if not placed and (memory == "ideal" or moving is not False or partition is not False or blocks):
        raise ValueError("placed=False needs memory='arena', moving=False and partition=False, and has no blocks")
    if blocks and memory == "ideal":
        raise ValueError("blocks=True needs memory='arena': ideal memory has no addresses")
    simulation = _core.Simulation(
        budget=budget_bytes,
        arena=memory == "arena",
        placed=placed,
        ghosts=inplace == "ghost",
        events=events or blocks,
        timeline=timeline,
        blocks=blocks,
        **options.keywords(),
    )
    status: Status = simulation.advance(trace, finish=True)
    figures = simulation.statistics()
    decisions = tuple(simulation.decisions().split(";")[:-1]) if events or blocks else None
    return Run(
        status=status,
        policy=policy,
        memory=memory,
        deallocation=deallocation,
        budget_bytes=budget_bytes,
        min_budget_bytes=facts.min_budget_bytes,
        peak_bytes=figures["peak_bytes"],
        pinned_bytes=figures["pinned_bytes"],
        num_ops=figures["num_ops"],
        num_evictions=figures["num_evictions"],
        num_frees=figures["num_frees"],
        num_rematerializations=figures["num_rematerializations"],
        num_searches=figures["num_searches"],
        num_scores=figures["num_scores"],
        computed_seconds=facts.computed_ns * 1e-9,
        rematerialized_seconds=figures["rematerialized_ns"] * 1e-9,
        search_seconds=figures["search_ns"] * 1e-9,
        moved_bytes=figures["moved_bytes"],
        **tier_figures(figures),
        fragmentation=figures["unusable_bytes"] / budget_bytes if memory == "arena" and budget_bytes else 0.0,
        failure=_failure(trace, status, figures, facts.min_budget_bytes, budget_bytes),
        timeline=Timeline(*simulation.timeline()) if timeline else None,
        events=decisions if events else None,
        blocks=block_log(trace, simulation.block_log()) if blocks else None,
        rematerialized=rematerialized(trace, decisions) if decisions is not None else (),
    )


def _check_choice(what: str, choice: str, choices: tuple[str, ...]) -> None:
    if choice not in choices:
        raise ValueError(f"{what} is one of {', '.join(map(repr, choices))}, not {choice!r}")


def _failure(
    trace: Trace, status: Status, figures: dict[str, int], min_budget_bytes: int, budget_bytes: int
) -> str | None:
    if status == "ok":
        return None
    event = figures["failed_event"]
    where = f"event {event} ({trace.names[trace.name_ids[event]]})" if event < trace.num_events else "the end"
    if status == "thrash":
        return f"at {where}: rematerialization takes more time than max_slowdown allows"
    advice = f"no schedule can do with less than {format_bytes(min_budget_bytes)}"
    if budget_bytes >= min_budget_bytes:
        advice += ", and this policy needs more"
    return (
        f"at {where}: {format_bytes(figures['oom_bytes'])} do not fit, with {format_bytes(figures['used_bytes'])} of "
        f"{format_bytes(budget_bytes)} in use and nothing left to evict; {advice}"
    )
