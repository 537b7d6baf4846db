"""The runtime against plain PyTorch and its peers: step time, peak, share of search and bookkeeping.

python benchmarks/online.py small                 # microseconds per op on 8x8 tensors
python benchmarks/online.py gpt [peers directory]   # the GPT of the peers' table; `unet` for the UNet
"""

from __future__ import annotations

import sys
import time

import torch

import remint


def small() -> None:
    a, b = torch.randn(8, 8), torch.randn(8, 8)

    def per_op(op, count=20000) -> float:
        started = time.perf_counter()
        for _ in range(count):
            op()
        return (time.perf_counter() - started) / count * 1e6

    ops = {"add": lambda: a + b, "mm": lambda: a @ b, "relu": lambda: a.relu(), "softmax": lambda: a.softmax(-1)}
    for name, op in ops.items():
        plain = min(per_op(op) for _ in range(5))
        with remint.budget("64MiB"):
            inside = min(per_op(op) for _ in range(5))
        print(f"{name:8} plain {plain:5.2f} µs   in a budget {inside:5.2f} µs   more {inside - plain:5.2f} µs")


def model(name: str, peers: str) -> None:
    sys.path.insert(0, peers)
    import models

    def step(net, inputs) -> float:
        started = time.process_time()
        net.zero_grad(set_to_none=True)
        net(*inputs).backward()
        return time.process_time() - started

    plain_net, inputs = models.make(name)
    ckpt_net, _ = models.make(name, ckpt="nr")
    step(plain_net, inputs), step(ckpt_net, inputs)

    def budgeted(net, budget, **options):
        times = []
        with remint.budget(budget, **options) as run:
            for _ in range(4):
                times.append(step(net, inputs))
        overhead = run.search_seconds + max(
            run.bookkeeping_seconds - run.rematerialized_seconds - run.search_seconds, 0
        )
        return min(times[1:]), run, overhead / sum(times)

    plain = min(step(plain_net, inputs) for _ in range(4))
    ckpt = min(step(ckpt_net, inputs) for _ in range(4))
    free, run, _ = budgeted(plain_net, "2GiB")
    peak = run.peak_bytes
    _, ckpt_run, _ = budgeted(ckpt_net, "2GiB")
    mib = 2**20
    print(f"plain                 {plain * 1e3:7.1f} ms   peak {peak / mib:6.1f} MiB")
    print(f"budget, no pressure   {free * 1e3:7.1f} ms   {free / plain:.3f}x plain")
    print(
        f"checkpoint per block  {ckpt * 1e3:7.1f} ms   {ckpt / plain:.3f}x   peak {ckpt_run.peak_bytes / mib:6.1f} MiB"
    )
    points = [("checkpoint's peak", ckpt_run.peak_bytes)]
    points += [(f"{percent}%", peak * percent // 100) for percent in (90, 70, 50, 40, 30, 20)]
    for policy in ("coop", "dtr-eq", "lru"):
        for label, budget in points:
            try:
                seconds, run, share = budgeted(plain_net, budget, policy=policy)
            except remint.BudgetError:
                print(f"{policy:7} {label:18} does not fit")
                break
            print(
                f"{policy:7} {label:18} {seconds * 1e3:7.1f} ms   {seconds / plain:.3f}x   "
                f"peak {run.peak_bytes / mib:6.1f} MiB"
                f"   search and bookkeeping {share:.1%}   fragmentation {run.fragmentation:.1%}",
                flush=True,
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "small":
        small()
    else:
        model(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "../shared/peers")
