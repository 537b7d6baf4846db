"""One network trained in one way, in a process of its own: prints peak, step time and a digest as one line of JSON.

The peak is the most that one step has from PyTorch's allocator at once, scratch included; for the online way, which
brings an allocator of its own, it is the most that is in use there. What was there before (weights, optimizer state)
does not count. The budget of remint's own rows is exactly that number.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import time
from collections.abc import Callable

import torch
import torch._functorch.config
import torch.utils.checkpoint
from models import directly, make

import remint


def main() -> None:
    """Measure what the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["gpt", "unet"])
    parser.add_argument("way", choices=["plain", "torch-blocks", "torch-budget", "online", "planned"])
    parser.add_argument("--budget", type=int, default=0, help="bytes, for remint's ways")
    parser.add_argument("--fraction", type=float, default=1.0, help="activation_memory_budget")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--run", help="write remint's run to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, batch = make(args.model, _blocks if args.way == "torch-blocks" else directly)
    forward = _compiled(model, args)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    budget = functools.partial(remint.budget, args.budget) if args.way == "online" else None

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = forward(*batch)
        loss.backward()
        optimizer.step()
        return float(loss)

    result: dict[str, object] = {"status": "ok"}
    try:
        times, losses = [], []
        for _ in range(args.steps):
            began = time.process_time()
            if budget is None:
                losses.append(step())
            else:
                with budget():
                    losses.append(step())
            times.append(time.process_time() - began)
        result |= {"seconds": min(times), "digest": _digest(model, losses)}
        if budget is None:
            result["peak"] = _peak_of(step, before=optimizer.zero_grad)
        else:
            with budget(timeline=True) as run:
                step()
            result["peak"] = run.peak_bytes
            if args.run:
                run.finished().save(args.run)
    except remint.BudgetError as error:
        result = {"status": "does not fit", "why": str(error)}
    print(json.dumps(result))


def _peak_of(step: Callable[[], object], *, before: Callable[[], object]) -> int:
    """Return the most bytes that a step has from the allocator at once, by the events of the profiler."""
    for _ in range(2):  # under a profiler, what is compiled is compiled anew
        before()  # what the last step left must not be freed in this one
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as run:
            step()
    now = peak = 0
    for event in sorted(run.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


def _compiled(model: torch.nn.Module, args: argparse.Namespace) -> torch.nn.Module:
    if args.way == "torch-budget":
        torch._functorch.config.activation_memory_budget = args.fraction
        return torch.compile(model, backend="aot_eager")
    if args.way == "planned":
        return remint.compile(model, budget=args.budget)
    return model


def _blocks(block: torch.nn.Module, *args: torch.Tensor) -> torch.Tensor:
    return torch.utils.checkpoint.checkpoint(block, *args, use_reentrant=False)


def _digest(model: torch.nn.Module, losses: list[float]) -> str:
    """Return one number for every bit of the parameters and buffers after the steps, and of the losses."""
    digest = hashlib.sha256(repr(losses).encode())
    for tensor in model.state_dict().values():
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
