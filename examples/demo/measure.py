"""One network trained in one way, in a process of its own: prints peak, step time and a digest as one line of JSON.

The peak is that of an arena that is much too large to evict anything, opened around one step: it counts every
allocation of the step, scratch included, and is the same instrument for every way. What was there before (weights,
optimizer state) does not count. The budget of remint's own rows is exactly that number.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import time

import torch
import torch._functorch.config
import torch.utils.checkpoint
from models import directly, make

import remint

_ROOM = "16GiB"


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
        with budget(timeline=True) if budget is not None else remint.budget(_ROOM) as run:
            step()
        result["peak"] = run.peak_bytes
        if args.run:
            run.finished().save(args.run)
    except remint.BudgetError as error:
        result = {"status": "does not fit", "why": str(error)}
    print(json.dumps(result))


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
