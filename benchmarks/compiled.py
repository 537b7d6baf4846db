"""One training step inside a budget: the compiled path, the online path, and what else there is.

python benchmarks/compiled.py                  # all models, three quarters of an hour; a table and a figure in results
python benchmarks/compiled.py unet gpt gpt12   # some of them
python benchmarks/compiled.py --quick gpt      # four settings of activation_memory_budget instead of twelve
python benchmarks/compiled.py --render         # the table and the figure of what was measured last

Per model one fresh process runs every variant, its steps in turns. The peak is the heap's above what was there before
the step, counted from outside (heap_counter.c); for the online path it is the arena's. The time is the CPU time of one
step, one thread, the quickest of several: others on the machine only ever add to it.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

BUILD = Path(__file__).resolve().parents[1] / "build" / "compiled"
MODELS = ("unet", "gpt", "gpt12")
FRACTIONS = (1.0, 0.7, 0.5, 0.3, 0.1, 0.0)
# Steps of all variants in turns: as many rounds as fit into these seconds, at least the fewest.
TIMING_SECONDS = 240.0
FEWEST_ROUNDS = 4
PLAN_SECONDS = 6.0


def make(name: str):
    """Return a model and its arguments: those of the table of peers, and a deeper GPT."""
    import torch

    from planning_models import Transformer, UNet

    torch.manual_seed(0)
    if name == "unet":
        x = torch.randn(4, 3, 128, 128)
        return UNet(), (x, torch.randn_like(x))
    ids = torch.randint(0, 1024, (8 if name == "gpt" else 4, 256))
    return Transformer(6 if name == "gpt" else 12, causal=True, fused=True), (ids, ids.roll(-1, 1))


def block_by_block(model):
    """Wrap each block in `torch.utils.checkpoint`, as its documentation says."""
    import torch
    from torch.utils import checkpoint

    class Region(torch.nn.Module):
        def __init__(self, block) -> None:
            super().__init__()
            self.block = block

        def forward(self, x):
            return checkpoint.checkpoint(self.block, x, use_reentrant=False)

    for blocks in (getattr(model, name, ()) for name in ("layers", "down", "up")):
        for place in range(len(blocks)):
            blocks[place] = Region(blocks[place])
    return model


class Heap:
    """What heap_counter.c counts."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(None)
        self.library.heap_live.restype = self.library.heap_peak.restype = ctypes.c_long

    def peak_of(self, step: Callable[[], None]) -> int:
        gc.collect()
        self.library.heap_mark()
        before = self.library.heap_live()
        step()
        return self.library.heap_peak() - before


class Bench:
    """All variants of one model, in one process."""

    def __init__(self, name: str, *, quick: bool) -> None:
        import torch

        self.quick = quick
        torch.set_num_threads(1)
        torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1000
        self.name, self.heap = name, Heap()
        self.model, self.args = make(name)
        self.rows: list[dict] = []
        self.steps: list[tuple[dict, Callable[[], None]]] = []

    def step(self, model, call) -> None:
        loss = call(*self.args)
        loss.backward()
        del loss

    def add(self, tool: str, setting: str, model, call, **more) -> dict:
        run = functools.partial(self.step, model, call)
        run()  # compiles
        model.zero_grad(set_to_none=True)
        row = {"tool": tool, "setting": setting, "peak": self.heap.peak_of(run), **more}
        model.zero_grad(set_to_none=True)
        return self.timed(row, run, model)

    def timed(self, row: dict, run: Callable[[], None], model) -> dict:
        row["seconds"] = []

        def once() -> None:
            began = time.process_time()
            run()
            row["seconds"].append(time.process_time() - began)
            model.zero_grad(set_to_none=True)

        self.rows.append(row)
        self.steps.append((row, once))
        print(self.name, {k: v for k, v in row.items() if k != "seconds"}, file=sys.stderr, flush=True)
        return row

    def peers(self) -> None:
        import torch
        from torch._dynamo.backends.debugging import aot_eager
        from torch._functorch import config

        self.add("eager", "", self.model, self.model)
        wrapped = block_by_block(make(self.name)[0])
        self.add("torch.utils.checkpoint", "per block", wrapped, wrapped)
        for solver in ("dp", "ilp"):
            for fraction in (1.0, 0.2) if self.quick else FRACTIONS:
                # A backend of its own: dynamo finds what it compiled by the backend, and knows of no fractions.
                call = torch.compile(self.model, backend=functools.partial(aot_eager))
                with config.patch(activation_memory_budget=fraction, activation_memory_budget_solver=solver):
                    self.add("aot_eager", f"{solver} {fraction}", self.model, call)

    def compiled(self, budget: int) -> dict | None:
        import remint

        model = self.model
        call = remint.compile(model, budget=budget, time_limit=PLAN_SECONDS, cache=BUILD / "cache", progress=False)
        try:
            call(*self.args).backward()
        except remint.BudgetError as error:
            print(f"{self.name} {budget}: {error}", file=sys.stderr)
            return None
        model.zero_grad(set_to_none=True)
        (plan,) = call.remint_plan
        predicted = {
            "budget": budget,
            "plan_peak": plan.peak_bytes,
            "ratio": plan.cost / plan.graph.cost,
            "gap": plan.gap,
        }
        return self.add("remint compiled", f"{budget / 2**20:.1f} MiB", model, call, **predicted)

    def online(self, budget: int) -> None:
        import remint

        model = self.model

        def run() -> None:
            with remint.budget(budget) as live:
                self.step(model, model)
            self.peak = live.peak_bytes

        try:
            run()
            model.zero_grad(set_to_none=True)
        except remint.BudgetError:
            model.zero_grad(set_to_none=True)
            print(f"{self.name} online {budget}: out of memory", file=sys.stderr)
            return
        row = {"tool": "remint online", "setting": f"{budget / 2**20:.1f} MiB", "peak": self.peak, "budget": budget}
        self.timed(row, run, model)

    def run(self) -> list[dict]:
        import remint

        self.peers()
        # One budget for peaks that are close together, the lowest of them; the highest of all, to run every op once.
        peaks = sorted(row["peak"] for row in self.rows)
        wanted = [peaks[0]]
        for peak in peaks:
            if peak > 1.05 * wanted[-1]:
                wanted.append(peak)
        if wanted[-1] > 0.999 * peaks[-1]:
            wanted.pop()
        budgets = [peaks[-1], *reversed(wanted), *(int(peaks[0] * part) for part in (0.9, 0.8, 0.7, 0.6))]
        for budget in budgets:
            if self.compiled(budget) is None:
                break
        for budget in budgets[::2]:
            self.online(budget)
        # Python would look through all graphs of all variants for garbage, in the middle of a step.
        gc.collect()
        gc.freeze()
        gc.disable()
        began, rounds = time.monotonic(), 0
        while rounds < FEWEST_ROUNDS or (time.monotonic() - began) * (rounds + 1) / rounds < TIMING_SECONDS:
            for row, once in list(self.steps):
                try:
                    once()
                except remint.BudgetError:  # greedy by measured costs, the online path can fail in a later step
                    print(f"{self.name} {row['tool']} {row['setting']}: out of memory", file=sys.stderr)
                    self.rows.remove(row)
                    self.steps.remove((row, once))
                    self.model.zero_grad(set_to_none=True)
            rounds += 1
        return self.rows


def measure(names: list[str], quick: list[str]) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    counter = BUILD / "heap_counter.so"
    source = Path(__file__).with_name("heap_counter.c")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", counter, source, "-ldl"], check=True)
    for name in names:
        # The heap keeps its pages from step to step. Otherwise a step also pays for those that the step before, one of
        # another variant, has given back.
        pages = {"MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
        environment = {**os.environ, **pages, "LD_PRELOAD": str(counter), "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, __file__, "--one", name, *quick], check=True, env=environment)


def main() -> None:
    options = sys.argv[1:]
    if options[:1] == ["--one"]:
        rows = Bench(options[1], quick="--quick" in options).run()
        (BUILD / f"{options[1]}.json").write_text(json.dumps(rows))
        return
    if options == ["--render"]:
        del sys.argv[1:]  # the command behind the figures is the one that measured
    else:
        quick = [option for option in options if option == "--quick"]
        measure([option for option in options if option not in quick] or list(MODELS), quick)
    from compiled_report import report

    report({name: json.loads(path.read_text()) for name in MODELS if (path := BUILD / f"{name}.json").exists()})


if __name__ == "__main__":
    main()
