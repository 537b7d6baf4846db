"""The context manager that opens a budget."""

from __future__ import annotations

import functools
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias, TypeVar, cast

import numpy as np

from remint import torch_extension
from remint.defaults import MAX_SLOWDOWN, POLICY
from remint.engine_options import EngineOptions
from remint.errors import BudgetError
from remint.offload import Offload, parse_offload, sized
from remint.runtime.agreement import SmallestBudgets, fail_together
from remint.runtime.devices_run import DevicesRun
from remint.runtime.free_memory import automatic_budget
from remint.runtime.live_run import LiveRun
from remint.runtime.patches import collective_waits, module_paths, optimizer_steps, tensor_methods
from remint.runtime.planning_command import planning_command
from remint.runtime.rank import Rank, this_rank
from remint.runtime.rank_exit import wait_at_exit
from remint.simulator.simulate import policy_names
from remint.trace import Trace
from remint.trace.events import CALL, FRESH, MUTATE, ONCE
from remint.units import parse_budget

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from remint import _torch

P = ParamSpec("P")
R = TypeVar("R")
Budget: TypeAlias = "int | str | Mapping[str | torch.device, int | str]"


class budget:  # noqa: N801 (used like a function: `with remint.budget("2GiB")`)
    """Run the code inside in a budget of memory, with the same bits as without.

    >>> import torch
    >>> model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    >>> with budget("1MiB") as run:
    ...     model(torch.randn(512, 64)).square().mean().backward()
    >>> run.status, run.peak_bytes <= run.budget_bytes, run.num_rematerializations > 0
    ('ok', True, True)

    Memory of the device that the code inside allocates comes from an arena of exactly the budget. When it is full,
    tensors that can be recomputed are evicted. They are recomputed when they are needed. Memory that was allocated
    before (the weights of a model made outside) is not in the arena and does not count. Nor does memory of devices
    that the budget does not name. Other threads are not affected.

    After the `with`, every tensor that the program still holds is resident and ordinary. A budget can be used as a
    decorator; then every call opens its own. Budgets can be nested: the inner one has its own arena, and tensors of the
    outer one that it uses are pinned there.

    Args:
        budget: bytes, as an int or a string such as `"2GiB"`; or `"auto"`: nine tenths of the memory that is free when
            the budget is opened. For several devices, the budget of each:
            `{"cuda:0": "8GiB", "cuda:1": "8GiB", "cpu": "4GiB"}`. Each has its own arena; `run.devices` has the figures
            of each. On several ranks: a list with one for each rank, or a function of the rank.
        group: a process group whose ranks fail together; None for the default group, if there is one when an error
            leaves the budget. When a rank does not fit, all ranks of the group raise the same `remint.BudgetError`
            within seconds, and the group is aborted. False: an error concerns this rank only, and process groups stay
            as they are. The others wait for it until the program, or a time-out, ends that.
        device: whose memory the budget is of: `"cpu"`, `"cuda"`, or a device that PyTorch does not know itself
            (PrivateUse1). By default the accelerator if it is such a device, else the CPU.
        wall: `"hard"`: an arena of exactly the budget, which nothing inside can exceed. `"soft"`: PyTorch's allocator
            stays in its place, and remint evicts when what the program holds exceeds the budget, or when that allocator
            runs out of memory. Scratch of kernels and unused memory in PyTorch's cache can exceed the budget; steps are
            not learned. For CUDA only, other devices raise a `ValueError`.
        policy: chooses what is evicted; `remint.policy_names()` lists them.
        learn: know a step of the program that comes again, and decide with its whole course in view. Steps end where
            an optimizer steps, or with a backward pass if there is no optimizer; `run.step()` marks them by hand.
        plan: search for better plans of learned steps in another process, which is nice to this one; with `learn` only.
            What it finds is kept in the user's cache folder, for the next run.
        overflow: what happens when something does not fit: `"raise"` a `remint.BudgetError`, or `"spill"`: take it
            from ordinary memory, warn once, and count it in `run.spilled_bytes`.
        offload: a second tier of memory, where tensors go that are slower to recompute than to fetch, or cannot be
            recomputed: gradients, optimizer state, weights that are made inside. `"16GiB"`: so many bytes, in a
            temporary file for the CPU, in memory of the host for an accelerator. For the CPU also `"disk"`: nine tenths
            of the disk's free space; or a folder for the file; or a `remint.Offload` with all of it. With it, steps
            are not learned.
        max_slowdown: a step that becomes slower than this many times its own time raises a `remint.BudgetError`; None
            for no limit.
        partition: cheap and expensive bytes at two ends of the arena; by default with `coop` only.
        ignore_small: pass over candidates smaller than this fraction of their mean size.
        sample: score only sqrt(n) candidates drawn at random.
        seed: for `random` and `sample`.
        costs: take the cost of each op from this trace (or these seconds), in order, instead of the clock. For
            experiments that must come out the same each time; with a trace, as `remint.simulate` says. Ops beyond it
            are measured.
        timeline: keep the bytes in use after each op.
        events: keep the list of evictions and rematerializations, by the numbers that tensors have in a recorded trace.
        blocks: keep the log of every block of the arena, for `run.blocks` and the arena map of `run.report()`.
        source_lines: note the line of the program and the module of each op, for `run.by_op()` and reports. Takes a few
            microseconds per op and per module.
        chaos: evict everything that can be evicted after every op. A test of whether a program runs under remint at
            all; very slow.
        check: check the engine's books after every op. For tests of remint.
    """

    def __init__(
        self,
        budget: Budget | Sequence[Budget] | Callable[[int], Budget],
        *,
        group: dist.ProcessGroup | Literal[False] | None = None,
        device: str | torch.device | None = None,
        wall: Literal["hard", "soft"] = "hard",
        policy: str = POLICY,
        learn: bool = True,
        plan: bool = True,
        overflow: Literal["raise", "spill"] = "raise",
        offload: Offload | int | str | os.PathLike[str] | None = None,
        max_slowdown: float | None = MAX_SLOWDOWN,
        partition: bool | None = None,
        ignore_small: float = 0.0,
        sample: bool = False,
        seed: int = 0,
        costs: Trace | Sequence[float] | None = None,
        timeline: bool = False,
        events: bool = False,
        blocks: bool = False,
        source_lines: bool = False,
        chaos: bool = False,
        check: bool = False,
    ) -> None:
        # What a function returns is looked at when the budget is opened; before that, no rank is known.
        each = [] if callable(budget) else _per_rank(budget) or [cast(Budget, budget)]
        if costs is not None and any(isinstance(one, Mapping) and len(one) > 1 for one in each):
            raise ValueError("costs= is for budgets of one device: ops of several devices have no one order")
        for one in each:
            _bytes_by_device(one, device)
        self._budget = budget
        self._device = device
        self._group = group
        if policy not in policy_names("arena"):
            raise ValueError(f"policy {policy!r} is not one of {', '.join(policy_names('arena'))}")
        if policy == "clairvoyant":
            raise ValueError(
                "policy 'clairvoyant' knows the future, which a program does not tell: it decides on steps that come "
                "again, whatever the policy for the others is (learn=True, the default)"
            )
        if overflow not in ("raise", "spill"):
            raise ValueError(f'overflow is "raise" or "spill", not {overflow!r}')
        if wall not in ("hard", "soft"):
            raise ValueError(f'wall is "hard" or "soft", not {wall!r}')
        if wall == "soft" and overflow == "spill":
            raise ValueError('wall="soft" has no arena that could overflow: leave overflow="spill" out')
        self._offload = parse_offload(offload)
        if self._offload is not None and wall == "soft":
            raise ValueError('offload= needs an arena, and wall="soft" has none: leave one of them out')
        if self._offload is not None and any(isinstance(one, Mapping) and len(one) > 1 for one in each):
            raise ValueError("offload= is for budgets of one device: open one budget for each device")
        if max_slowdown is not None and not max_slowdown > 1:
            raise ValueError(f"max_slowdown is more than 1, or None for no limit, not {max_slowdown}")
        options = EngineOptions(
            policy=policy, partition=partition, ignore_small=ignore_small, sample=sample, seed=seed, check=check
        )
        self._policy = policy
        self._costs = costs
        self._options: dict[str, Any] = {
            **options.keywords(),
            "chaos": chaos,
            "spill": overflow == "spill",
            "soft": wall == "soft",
            "timeline": timeline,
            "events": events,
            "blocks": blocks,
            "record": False,
            "source_lines": source_lines,
            "learn": learn,
            "planner": planning_command() if learn and plan else [],
            "max_slowdown": 0.0 if max_slowdown is None or math.isinf(max_slowdown) else max_slowdown,
        }
        self._open = threading.local()

    def _open_sessions(self, *, sleep: bool = True) -> tuple[list[_torch.Session], LiveRun]:
        """Open sessions that no thread is in yet, and their run. `sleep` lets them do so where the program fits."""
        sessions = self._new_sessions(sleep=sleep)
        wait_at_exit()
        if self._costs is not None:
            sessions[0].set_costs(*costs_of(self._costs))
        tensor_methods.install()
        collective_waits.install()
        if self._options["learn"]:
            optimizer_steps.install()
        if self._options["source_lines"]:
            module_paths.install()
        runs = {session.device: LiveRun(session, policy=self._policy) for session in sessions}
        run = DevicesRun(runs, policy=self._policy) if len(runs) > 1 else next(iter(runs.values()))
        return sessions, run

    def _close_sessions(self, sessions: list[_torch.Session]) -> None:
        """Close sessions of `_open_sessions`, which no thread is in any more."""
        tensor_methods.uninstall()
        collective_waits.uninstall()
        if self._options["learn"]:
            optimizer_steps.uninstall()
        if self._options["source_lines"]:
            module_paths.uninstall()
        failures: list[BudgetError] = []
        for session in sessions:
            if not self._options["soft"]:
                torch_extension.free_workspaces(session.device)
            try:
                session.close()
            except BudgetError as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def __enter__(self) -> LiveRun:
        sessions, run = self._open_sessions()
        if not hasattr(self._open, "runs"):
            self._open.runs = []
        # Budgets inside of others may be opened on some ranks only.
        agrees = this_rank() is not None and not torch_extension.load().inside()
        self._open.runs.append((sessions, run, SmallestBudgets(run) if agrees else None))
        sessions[0].enter(sessions[1:])
        return run

    def _new_sessions(self, *, sleep: bool) -> list[_torch.Session]:
        """Return one session for each device. They share a lock."""
        budgets = _bytes_by_device(_budget_of_rank(self._budget), self._device)
        names = [torch_extension.device_name(device) for device in budgets]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"the device {name} has two budgets: {', '.join(map(str, budgets))}")
        sessions: list[_torch.Session] = []
        try:
            for name, nbytes in zip(names, budgets.values(), strict=True):
                partner = sessions[0] if sessions else None
                sessions.append(
                    torch_extension.new_session(
                        automatic_budget(name) if nbytes is None else nbytes,
                        **self._options | self._tier(name),
                        device=name,
                        several=len(names) > 1,
                        sleep=sleep,
                        partner=partner,
                    )
                )
        except BaseException:
            for session in sessions:
                session.close()
            raise
        return sessions

    def _tier(self, device: str) -> dict[str, Any]:
        """Return the options of a session for the tier below the memory of `device`."""
        offload = self._offload
        if offload is None:
            return {}
        if device == "cpu":
            folder, nbytes = str(offload.folder()), sized(offload)
        elif offload.path is not None or offload.bytes is None:
            raise ValueError(
                f'a budget of {device} offloads to memory of the host: say how much, as in offload="16GiB"'
            )
        else:
            folder, nbytes = "", sized(offload)
        return {
            **replace(offload, bytes=nbytes).keywords(),
            "offload_folder": folder,
            "measure_bandwidth": offload.bandwidth is None,
        }

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        sessions, run, smallest_budgets = self._open.runs.pop()
        sessions[0].leave()
        if smallest_budgets is not None:
            smallest_budgets.close()
        shared = None if error is None else self._shared(error, run)
        run._failed(shared)
        try:
            self._close_sessions(sessions)
        except BudgetError as failure:
            # Tensors that could not be recomputed raise when they are read. The first error says more.
            if error is None:
                raise self._shared(failure, run) from None
        if shared is not None and shared is not error:
            raise shared

    def _shared(self, error: BaseException, run: LiveRun) -> BaseException:
        """Return the error that all ranks raise."""
        return error if self._group is False else fail_together(error, run.budget_bytes, self._group)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Run every call of `function` in a budget of its own."""

        @functools.wraps(function)
        def inside(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return inside


def _per_rank(budget: object) -> list[Budget] | None:
    """Return the budgets of all ranks, if it is a list of them."""
    return list(budget) if isinstance(budget, Sequence) and not isinstance(budget, str) else None


def _budget_of_rank(budget: Budget | Sequence[Budget] | Callable[[int], Budget]) -> Budget:
    """Return the budget of this rank."""
    rank = this_rank() or Rank(0, 1)
    if callable(budget):
        return budget(rank.number)
    budgets = _per_rank(budget)
    if budgets is None:
        return cast(Budget, budget)
    if len(budgets) != rank.count:
        raise ValueError(f"{len(budgets)} budgets were given, one per rank, and the number of ranks is {rank.count}")
    return budgets[rank.number]


def _bytes_by_device(budget: Budget, device: str | torch.device | None) -> dict[str | torch.device | None, int | None]:
    """Return the bytes of each device; None for `"auto"`."""
    if isinstance(budget, Mapping):
        if not budget:
            raise ValueError('a budget of no device: name one, such as {"cpu": "2GiB"}')
        if device is not None:
            raise ValueError(f"the budget names its devices: leave device={str(device)!r} out")
    given = budget if isinstance(budget, Mapping) else {device: budget}
    found: dict[str | torch.device | None, int | None] = {name: _bytes_of(nbytes) for name, nbytes in given.items()}
    if 0 in found.values():
        raise ValueError("a budget of 0 bytes holds nothing: give more")
    return found


def _bytes_of(budget: int | str) -> int | None:
    """Return the bytes of a budget; None for `"auto"`: what is free is looked up when the budget is opened."""
    if isinstance(budget, str) and budget.strip().endswith("%"):
        raise ValueError(
            f"a budget of {budget} is a part of the peak without a budget, which is not known before the program has "
            f"run: `remint.advise(step).peak_bytes` tells it, and `remint run --budget {budget} script.py` measures it"
        )
    return None if budget == "auto" else parse_budget(budget)


def costs_of(trace: Trace | Sequence[float]) -> tuple[list[int], list[int]]:
    """Return for each op its nanoseconds, and the bytes that it makes or -1; the bytes decide where they are placed."""
    if not isinstance(trace, Trace):
        return [round(seconds * 1e9) for seconds in trace], [-1] * len(trace)
    is_op = (trace.kinds >= CALL) & (trace.kinds <= MUTATE)
    made = np.where((trace.aliases == FRESH) | (trace.aliases == ONCE), trace.nbytes, 0)
    up_to = np.concatenate([[0], np.cumsum(made)])[trace.out_offsets]
    return trace.nanoseconds[is_op].tolist(), np.diff(up_to)[is_op].tolist()
