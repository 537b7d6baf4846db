"""The memory that gloo itself takes for a collective, beside the tensors that it is given.

python benchmarks/gloo_scratch.py            # tensors of 8 MiB, two ranks
python benchmarks/gloo_scratch.py 32

Inside a budget tensors are in the arena. So the peak of the heap in a collective, which heap_counter.c counts, is
gloo's own: it takes that from the C++ heap and from PyTorch's allocator in threads of its own. `seen` is the part that
PyTorch's profiler knows of, as an allocator of PyTorch could.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

import remint
import report
from remint.capture.profiled_peak import peak_bytes

RANKS = 2
LIMIT = 120.0


def collectives(count: int) -> dict[str, Callable[[], object]]:
    """Return calls of collectives on `count` numbers per rank."""
    x, whole = torch.ones(count), torch.ones(RANKS * count)
    parts = list(torch.ones(RANKS, count).unbind())
    return {
        "all_reduce": lambda: dist.all_reduce(x),
        "broadcast": lambda: dist.broadcast(x, 0),
        "reduce": lambda: dist.reduce(x, 0),
        "all_gather, a list": lambda: dist.all_gather(parts, x),
        "all_gather, one tensor": lambda: dist.all_gather_single(whole, x),
        "reduce_scatter, one tensor": lambda: dist.reduce_scatter_single(x, whole),
        "all_to_all": lambda: dist.all_to_all_single(whole, whole.clone()),
    }


def work(rank: int, store: str, count: int, results: Connection) -> None:
    """Be one rank."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    heap = ctypes.CDLL(None)
    heap.heap_live.restype = heap.heap_peak.restype = ctypes.c_long
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    rows = []
    with remint.budget("4GiB", learn=False):
        for name, call in collectives(count).items():
            call()
            dist.barrier()
            heap.heap_mark()
            before = heap.heap_live()
            call()
            taken = heap.heap_peak() - before
            dist.barrier()
            with torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
            ) as profile:
                call()
            rows.append((name, taken, peak_bytes(profile)))
    if rank == 0:
        results.send(rows)
    dist.destroy_process_group()


def main() -> None:
    """Measure on two ranks and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mib", nargs="?", type=int, default=8, help="of the tensor that each rank gives")
    args = parser.parse_args()
    here, there = multiprocessing.get_context("spawn").Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        counter = Path(folder) / "heap_counter.so"
        source = Path(__file__).with_name("heap_counter.c")
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", counter, source, "-ldl"], check=True)
        os.environ["LD_PRELOAD"] = str(counter)
        given = (str(Path(folder) / "store"), args.mib * 2**18, there)
        ranks = [
            multiprocessing.get_context("spawn").Process(target=work, args=(rank, *given), daemon=True)
            for rank in range(RANKS)
        ]
        for process in ranks:
            process.start()
        end = time.monotonic() + LIMIT
        while not here.poll(0.2):
            if time.monotonic() > end or any(process.exitcode not in (None, 0) for process in ranks):
                raise SystemExit("a rank failed, or takes too long")
        rows: list[tuple[str, int, int]] = here.recv()
        for process in ranks:
            process.join(30)
    cells = [[name, f"{taken / 2**20:.1f}", f"{seen / 2**20:.1f}"] for name, taken, seen in rows]
    report.publish(
        f"What gloo takes for a collective, with tensors of {args.mib} MiB per rank",
        report.markdown(["collective", "scratch MiB", "seen by PyTorch MiB"], cells),
    )


if __name__ == "__main__":
    main()
