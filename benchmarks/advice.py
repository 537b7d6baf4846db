"""Are the budgets that `remint.advise` names good? Six programs, trained in each of them from the first step on.

python benchmarks/advice.py                # all six
python benchmarks/advice.py cnn gpt        # some

CPU seconds of one thread: the quickest of nine learned steps in a budget over the quickest of nine plain steps, which
take turns with them in another thread. Advice is about the quickest steps, too: memory that comes from the system makes
plain steps of convolutions differ by a quarter. `said` is what the advice said of a budget, `was` what came of it.
Exits with 1, and says which rows they are, if some budget does not fit, or is more than 15% off.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import nn

import remint
import report
import workloads
from remint.advice.trial import TrialSteps
from remint.units import format_bytes

PROGRAMS = ("cnn", "gpt", "lstm", "lora", "unet", "convnext")
ROUNDS = 9
TOLERANCE = 0.15
# A step is timed when its plan is there, or when none came in this time.
MOST_WAITING_SECONDS = 120.0


class LoRA(nn.Module):
    """A frozen linear layer with a trained correction of low rank."""

    def __init__(self, frozen: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, frozen.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + F.linear(F.linear(x, self.down), self.up)


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        stages: list[nn.Module] = [nn.Conv2d(3, 32, 4, 4)]
        for width in (32, 64):
            stages += [ConvNeXtBlock(width) for _ in range(3)]
            stages.append(nn.Conv2d(width, 2 * width, 2, 2))
        self.stages, self.head = nn.Sequential(*stages), nn.Linear(128, 10)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.stages(x).mean((2, 3))), target)


def make(name: str) -> Callable[[], float]:
    """Return a function that trains one step of a program made anew, and returns its CPU seconds."""
    torch.manual_seed(0)
    optimizer_type: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
    if name == "convnext":
        net: nn.Module = ConvNeXt()
        inputs = (torch.randn(16, 3, 64, 64), torch.randint(0, 10, (16,)))
        optimizer_type = torch.optim.Adam
    elif name == "lora":
        net, inputs = workloads.make("gpt")
        net.requires_grad_(False)
        for block in net.blocks:
            for part in ("qkv", "project", "up", "down"):
                setattr(block, part, LoRA(getattr(block, part)))
        optimizer_type = torch.optim.AdamW
    else:
        net, inputs = workloads.make({"cnn": "resnet"}.get(name, name))
    optimizer = optimizer_type([weight for weight in net.parameters() if weight.requires_grad], 1e-3)

    def step() -> float:
        began = time.thread_time()
        optimizer.zero_grad()
        net(*inputs).backward()
        optimizer.step()
        return time.thread_time() - began

    return step


def slowdown(name: str, budget: int) -> float | None:
    """Return how many times longer steps take in the budget, once they are learned and planned; None: do not fit."""
    inside, outside = make(name), make(name)
    warm_up = TrialSteps()
    plain_times: list[float] = []
    times: list[float] = []
    learned = settled = False
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as other:
        try:
            with remint.budget(budget) as run:
                while len(times) < ROUNDS:
                    plain = other.submit(outside).result()
                    seconds = inside()
                    if settled:
                        plain_times.append(plain)
                        times.append(seconds)
                    elif not learned:
                        learned = warm_up.ended(seconds, seconds, run.learning)
                        began = time.perf_counter()
                    else:
                        learning = run.learning
                        late = time.perf_counter() - began > MOST_WAITING_SECONDS
                        settled = late or learning.num_plans > 0 or not learning.is_planning
        except remint.BudgetError:
            return None
    return min(times) / min(plain_times)


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", default=PROGRAMS, metavar="program")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows, failed = [], []
    for name in args.programs:
        advice = remint.advise(make(name), try_it=False)
        named = {"recommended": advice.recommended, "half of the peak": None, "least": advice.least}
        half = [choice for choice in advice.choices if choice.budget_bytes <= 0.51 * advice.peak_bytes]
        named["half of the peak"] = half[0] if half else None
        for why, choice in named.items():
            if choice is None:
                continue
            assert choice.learned is not None
            was = slowdown(name, choice.budget_bytes)
            off = None if was is None else was / choice.learned - 1
            row = [
                name,
                why,
                format_bytes(choice.budget_bytes),
                f"{choice.budget_bytes / advice.peak_bytes:.0%}",
                f"{choice.learned:.3f}",
                "no" if was is None else f"{was:.3f}",
                "does not fit" if off is None else f"{off:+.1%}",
            ]
            rows.append(row)
            if off is None or abs(off) > TOLERANCE:
                failed.append(f"{name}, {why}: {row[-1]}")
            print(*row, flush=True)
    headings = ["program", "budget", "bytes", "of the peak", "said", "was", "off by"]
    verdict = f"{len(rows) - len(failed)} of {len(rows)} rows are within {TOLERANCE:.0%}."
    notes = "\n".join([verdict, *(f"- Not within it: {row}" for row in failed)])
    report.publish("Advice: said and done", report.markdown(headings, rows), notes=notes)
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
