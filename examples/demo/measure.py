"""Trains one network in one way after another: a request per line of stdin, an answer per line of stdout, as JSON.

Every way starts from the same weights, and takes turns with plain steps of a twin: what others do on the machine makes
both slower. The peak is the most that one step has from PyTorch's allocator at once, scratch included; for the online
way, which brings an allocator of its own, it is the most that is in use there. What was there before (weights,
optimizer state) does not count. The budget of remint's own rows is exactly that number.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch._dynamo
import torch._functorch.config
import torch.utils.checkpoint
from models import directly, make

import remint
from remint.capture.profiled_peak import peak_bytes

WAYS = ("plain", "torch-blocks", "torch-budget", "online", "planned")
_PLANS = tempfile.TemporaryDirectory()  # under a profiler, what is compiled is compiled anew, but not planned


def main() -> None:
    """Answer what is asked until stdin ends."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        try:
            answer = measure(**json.loads(line))
        except remint.BudgetError as error:
            answer: dict[str, Any] = {"status": "does not fit", "why": str(error)}
        except Exception as error:
            answer: dict[str, Any] = {"status": "failed", "why": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(answer), flush=True)


def measure(
    model: str, way: str, *, steps: int, budget: int = 0, fraction: float = 1.0, save: str | None = None
) -> dict[str, Any]:
    """Return peak, step time, that of plain steps in between, and a digest; `save` gets remint's run or plan.

    `budget` is bytes, for remint's ways; `fraction` is torch's activation_memory_budget.
    """
    if way not in WAYS:
        raise ValueError(f"a way is one of {', '.join(WAYS)}, not {way!r}")
    torch._dynamo.reset()
    net, batch = make(model, _blocks if way == "torch-blocks" else directly)
    forward: Any = net
    if way == "torch-budget":
        torch._functorch.config.activation_memory_budget = fraction
        forward = torch.compile(net, backend="aot_eager")
    elif way == "planned":
        forward = remint.compile(net, budget=budget, time_limit=5, cache=_PLANS.name, progress=False)
    inside = functools.partial(remint.budget, budget) if way == "online" else contextlib.nullcontext
    twin, _ = make(model)
    step, plain_step = _stepper(net, forward, batch), _stepper(twin, twin, batch)
    seconds, plain_seconds, losses = [], [], []
    gc.collect()
    # Plain steps are taken by another thread, which a budget of this one does not touch.
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as outside, inside() as timed_run:
        for _ in range(steps):
            plain_seconds.append(outside.submit(_timed, plain_step).result()[0])
            took, loss = _timed(step)
            seconds.append(took)
            losses.append(loss)
    fastest, plain = min(seconds), min(seconds if way == "plain" else plain_seconds)
    answer: dict[str, Any] = {"status": "ok", "seconds": fastest, "plain": plain, "digest": _digest(net, losses)}
    if way == "online":
        with inside(blocks=True, source_lines=True) as run:
            step()
        answer["peak"] = max(run.peak_bytes, timed_run.peak_bytes)
    else:
        answer["peak"] = _peak_of(step, before=net.zero_grad, times=1 if forward is net else 2)
    if save is not None:
        (forward.remint_plan[0] if way == "planned" else run.finished()).save(save)
    return answer


def _timed(step: Callable[[], float]) -> tuple[float, float]:
    """Return the CPU seconds that a step takes in this thread, and its loss."""
    began = time.thread_time()
    loss = step()
    return time.thread_time() - began, loss


def _peak_of(step: Callable[[], object], *, before: Callable[[], object], times: int) -> int:
    """Return the most bytes that a step has from the allocator at once, by the events of the profiler."""
    for _ in range(times):  # what is compiled is compiled the first time
        before()  # what the last step left must not be freed in this one
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            step()
    return peak_bytes(profile)


def _stepper(net: torch.nn.Module, forward: Any, batch: tuple[Any, ...]) -> Callable[[], float]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = forward(*batch)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def _blocks(block: torch.nn.Module, *args: torch.Tensor) -> torch.Tensor:
    return torch.utils.checkpoint.checkpoint(block, *args, use_reentrant=False)


def _digest(net: torch.nn.Module, losses: list[float]) -> str:
    """Return one number for every bit of the parameters and buffers after the steps, and of the losses."""
    digest = hashlib.sha256(repr(losses).encode())
    for tensor in net.state_dict().values():
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
