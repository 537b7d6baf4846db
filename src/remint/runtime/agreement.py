"""Ranks that share a fate: when one does not fit into its budget, all raise the same BudgetError.

They talk through a store, not by collectives: the rank that fails is in the middle of the program, and the others wait
for it in whatever collective comes next. So the rank that fails first leaves a note in the store, and then closes its
connections. The collectives of the others end with an error, and then they find the note.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from remint.errors import BudgetError
from remint.runtime.rank import Rank, store_of_ranks, this_rank
from remint.units import format_bytes

if TYPE_CHECKING:
    from remint.runtime.live_run import LiveRun

# A rank whose collective failed looks for a note for so long: a rank may close its connections before it leaves one.
_PATIENCE = 3.0
# Closing connections takes no longer, or is left to itself.
_CLOSING = 5.0
_NO_TAG = (1 << 31) - 1

# What errors of collectives say when another rank has gone.
_LOST = re.compile("connection|gloo|nccl|timed out", re.IGNORECASE)
# The attribute of errors that all ranks know already.
_AGREED = "_remint_agreed"

_log = logging.getLogger("remint")
_lock = threading.Lock()
_num_failures = 0
_num_budgets = 0


def fail_together(error: BaseException, budget_bytes: int, group: dist.ProcessGroup | None) -> BaseException:
    """Return the error that all ranks of the group raise because of this one: itself, if it concerns no budget.

    Called when an error leaves a budget. After a BudgetError of any rank, the process group is gone.
    """
    global _num_failures
    if not isinstance(error, RuntimeError) or getattr(error, _AGREED, False):
        return error
    rank, store = this_rank(), store_of_ranks()
    if rank is None or store is None or (group is not None and not _is_member(group)):
        return error
    key = f"budget/{_name(group)}/failure/{_num_failures}"
    # The store is gone when the rank that has it is: then there is nobody to agree with.
    note: bytes | None = None
    with contextlib.suppress(RuntimeError):
        if (shortage := _shortage_of(error)) is not None:
            # The first rank that fails speaks for all.
            note = store.compare_set(key, "", _note(shortage, rank, budget_bytes))
        else:
            note = _found(store, key, wait=_LOST.search(str(error)) is not None)
    if not note:
        return error
    with _lock:
        _num_failures += 1
    _close_connections(group)
    return _error_of(json.loads(note), error)


def _shortage_of(error: BaseException | None) -> BudgetError | None:
    """Return the BudgetError that an error is, or was raised from: pipelines raise errors of their own."""
    while error is not None and not isinstance(error, BudgetError):
        error = error.__cause__
    return error


def _note(error: BudgetError, rank: Rank, budget_bytes: int) -> str:
    least = error.min_budget_bytes or 0
    what = f" for {error.op}" if error.op else ""
    if least > budget_bytes:
        first = f"{rank} needs {format_bytes(least - budget_bytes)} more{what}"
    else:
        first = f"{rank} did not fit into its budget of {format_bytes(budget_bytes)}{what and f', {error.op}'}"
    return json.dumps(
        {
            "message": f"{first}.\n{error}",
            "min_budget_bytes": error.min_budget_bytes,
            "known_budget_bytes": error.known_budget_bytes,
            "op": error.op,
        }
    )


def _error_of(note: dict[str, Any], cause: BaseException) -> BudgetError:
    message = note.pop("message")
    agreed = BudgetError(message, **note)
    setattr(agreed, _AGREED, True)
    # On the rank that failed, the traceback leads to the op. On others, the cause is the collective that ended.
    if isinstance(cause, BudgetError):
        return agreed.with_traceback(cause.__traceback__)
    agreed.__cause__ = cause
    return agreed


def _found(store: Any, key: str, *, wait: bool) -> bytes | None:
    end = time.monotonic() + (_PATIENCE if wait else 0.0)
    while not store.check([key]):
        if time.monotonic() >= end:
            return None
        time.sleep(0.02)
    note: bytes = store.get(key)
    return note


def _is_member(group: dist.ProcessGroup) -> bool:
    return dist.is_initialized() and dist.get_rank(group) >= 0


def _name(group: dist.ProcessGroup | None) -> str:
    return "all" if group is None else "-".join(map(str, dist.get_process_group_ranks(group)))


def _close_connections(group: dist.ProcessGroup | None) -> None:
    """End the collectives of the group, here and on the other ranks; without a group, of all groups."""
    if not dist.is_initialized():
        return
    groups = list(dist.distributed_c10d._world.pg_map) if group is None else [group]

    def close() -> None:
        for each in groups:
            with contextlib.suppress(RuntimeError):
                each.abort()
            with contextlib.suppress(RuntimeError):
                _close_pairs(each)

    # A thread of its own is in no budget, and may take its time.
    closing = threading.Thread(target=close, daemon=True, name="remint closes connections")
    closing.start()
    closing.join(_CLOSING)


def _close_pairs(group: dist.ProcessGroup) -> None:
    """Close gloo's connections, which it cannot abort: it closes those of a group where one of them times out.

    To drop the group is not enough: Works that the program still holds keep the connections open.
    """
    backend: Any = group._get_backend(torch.device("cpu"))
    if backend.name() == "gloo" and group.size() > 1:
        peer = (group.rank() + 1) % group.size()
        # Nobody sends anything with this tag.
        backend.recv([torch.empty(1)], peer, _NO_TAG).wait(timedelta(milliseconds=1))


class SmallestBudgets:
    """After the first step, tells all ranks which of them needs most. No rank waits for another."""

    def __init__(self, run: LiveRun) -> None:
        global _num_budgets
        with _lock:
            _num_budgets += 1
            self._key = f"budget/least/{_num_budgets}"
        self._run = run
        self._told = False
        self._hook = register_optimizer_step_post_hook(self._stepped)

    def close(self) -> None:
        """Look at steps no longer."""
        self._hook.remove()

    def _stepped(self, _optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        rank, store = this_rank(), store_of_ranks()
        if rank is None or store is None:
            return
        with contextlib.suppress(RuntimeError):
            if not self._told:
                store.set(f"{self._key}/{rank.number}", str(self._run.min_budget_bytes))
                self._told = True
            keys = [f"{self._key}/{number}" for number in range(rank.count)]
            if not store.check(keys):
                return
            needs = [int(store.get(key)) for key in keys]
            self._run.ranks_min_budget_bytes = max(needs)
            if rank.number == 0:
                _log.info(
                    "after the first step, all ranks need budgets of at least %s: rank %d needs most",
                    format_bytes(max(needs)),
                    needs.index(max(needs)),
                )
        if self._run.ranks_min_budget_bytes is not None:
            self.close()
