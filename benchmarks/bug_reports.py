"""Three public bug reports about other ways to save activation memory, reproduced beside remint.

1. pytorch 190758: gradients with dropout are wrong below `activation_memory_budget` 1.0. Autograd's derivative along a
   direction is compared with finite differences, with the same seed, in float64.
2. pytorch 197838: the peak is not monotone in `activation_memory_budget`. The peak is that of PyTorch's allocator.
3. torchtitan 1117: "different metadata" errors of torch.utils.checkpoint on mixtures of experts. The
   report is about GPUs whose kernels do not repeat their bits. A CPU does repeat them, so the second router here also
   changes its bias in the forward pass, to balance the load.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable

import torch
import torch._functorch.config
import torch.nn.functional as F  # noqa: N812
import torch.utils.checkpoint
from torch import nn

import remint
from remint.capture.profiled_peak import peak_bytes
from remint.units import format_bytes
from report import markdown, publish

Forward = Callable[[torch.Tensor], torch.Tensor]


class DropoutBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.dropout(self.down(F.dropout(F.gelu(self.up(self.norm(x))), 0.3)), 0.3)


class GatedBlock(nn.Module):
    """The MLP of a Llama: its down projection decides the peak in the report."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate, self.up, self.down = (
            nn.Linear(a, b, bias=False) for a, b in [(width, 4 * width)] * 2 + [(4 * width, width)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Experts(nn.Module):
    """Every token goes to one of four experts, as many tokens to each as the router says."""

    def __init__(self, width: int, *, balance: bool) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.balance = balance
        self.register_buffer("bias", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = (self.router(x) + self.bias).argmax(1)
        if self.balance:
            load = torch.bincount(chosen, minlength=4).float()
            self.bias.add_(0.5 * (load.mean() - load).sign())
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mine = (chosen == number).nonzero()[:, 0]
            y = y.index_add(0, mine, F.gelu(expert(x[mine])))
        return x + y


def derivatives(run: Callable[[nn.Module, torch.Tensor], float], model: nn.Sequential) -> tuple[float, float]:
    """Return a derivative along a direction: by autograd, and by finite differences."""
    x = torch.randn(128, 64).double()
    weight = model[1].up.weight
    run(model, x)
    direction, e = torch.randn_like(weight), 1e-6
    by_autograd = float((weight.grad * direction).sum())
    values = []
    for shift in (e, -2 * e):
        with torch.no_grad():
            weight += shift * direction
        values.append(run(model, x))
    return by_autograd, (values[0] - values[1]) / (2 * e)


def dropout(inductor: bool) -> str:
    def compiled(backend: str, fraction: float) -> Callable[[nn.Module, torch.Tensor], float]:
        torch._dynamo.reset()
        torch._functorch.config.activation_memory_budget = fraction
        forward: dict[nn.Module, Forward] = {}

        def run(model: nn.Module, x: torch.Tensor) -> float:
            torch.manual_seed(1)
            loss = forward.setdefault(model, torch.compile(model, backend=backend))(x).square().mean()
            loss.backward()
            return float(loss.detach())

        return run

    def inside(budget: int) -> Callable[[nn.Module, torch.Tensor], float]:
        def run(model: nn.Module, x: torch.Tensor) -> float:
            torch.manual_seed(1)
            with remint.budget(budget) as open_run:
                loss = model(x).square().mean()
                loss.backward()
            peaks.append(open_run.peak_bytes)
            return float(loss.detach())

        return run

    peaks: list[int] = []
    ways = [("torch, aot_eager", str(f), lambda f=f: compiled("aot_eager", f)) for f in (1.0, 0.5)]
    if inductor:
        ways += [("torch, inductor", str(f), lambda f=f: compiled("inductor", f)) for f in (1.0, 0.5)]
    ways.append(("remint.budget", "all", lambda: inside(1 << 30)))
    ways.append(("remint.budget", "50%", lambda: inside(peaks[0] // 2)))
    rows = []
    for name, budget, way in ways:
        torch.manual_seed(0)
        model = nn.Sequential(*(DropoutBlock(64) for _ in range(4))).double()
        autograd, differences = derivatives(way(), model)
        right = "yes" if abs(autograd - differences) < 1e-6 else "**no**"
        rows.append([name, budget, f"{autograd:.6f}", f"{differences:.6f}", right])
    torch._functorch.config.activation_memory_budget = 1.0
    return markdown(["way", "budget", "autograd", "finite differences", "right"], rows)


def peaks() -> str:
    torch.manual_seed(0)
    model, x = nn.Sequential(*(GatedBlock(64) for _ in range(16))), torch.randn(512, 64)

    def step(forward: Forward) -> None:
        model.zero_grad(set_to_none=True)
        forward(x).square().mean().backward()

    with remint.budget("16GiB") as whole:
        step(model)
    rows = []
    for fraction in (1.0, 0.75, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05):
        torch._dynamo.reset()
        torch._functorch.config.activation_memory_budget = fraction
        forward = torch.compile(model, backend="aot_eager")
        step(forward)
        model.zero_grad(set_to_none=True)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            step(forward)
        budget = int(whole.peak_bytes * fraction)
        try:
            with remint.budget(budget) as inside:
                step(model)
            ours = format_bytes(inside.peak_bytes)
        except remint.BudgetError:
            ours = "does not fit"
        rows.append([f"{fraction:.2f}", format_bytes(peak_bytes(profile)), format_bytes(budget), ours])
    torch._functorch.config.activation_memory_budget = 1.0
    return markdown(["torch's budget", "torch's peak", "remint's budget", "remint's peak"], rows)


def experts() -> str:
    rows = []
    for balance in (False, True):
        gradients = {}
        for way in ("plain", "torch.utils.checkpoint", "remint.budget, 60%"):
            torch.manual_seed(0)
            model, x = nn.Sequential(*(Experts(64, balance=balance) for _ in range(4))), torch.randn(512, 64)
            try:
                if way == "plain":
                    with remint.budget("1GiB") as whole:
                        copy.deepcopy(model)(x).square().mean().backward()
                    model(x).square().mean().backward()
                elif way == "torch.utils.checkpoint":
                    y = x
                    for block in model:
                        y = torch.utils.checkpoint.checkpoint(block, y, use_reentrant=False)
                    y.square().mean().backward()
                else:
                    with remint.budget(int(0.6 * whole.peak_bytes)):
                        model(x).square().mean().backward()
                gradients[way] = [parameter.grad for parameter in model.parameters()]
                # An expert that no token reached has no gradient, in every way alike.
                same = all(
                    a is b or (a is not None and b is not None and torch.equal(a, b))
                    for a, b in zip(gradients["plain"], gradients[way], strict=True)
                )
                result = "same bits" if same else "**other gradients**"
            except torch.utils.checkpoint.CheckpointError as error:
                result = f"**fails**: {str(error).splitlines()[0][:70]}…"
            router = "with a bias that the forward pass changes" if balance else "plain"
            rows.append([router, way, result])
    return markdown(["router", "way", "result"], rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inductor", action="store_true", help="the dropout check with inductor, too; needs minutes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    parts = {
        "Gradients with dropout (pytorch 190758)": dropout(options.inductor),
        "The peak against the budget (pytorch 197838)": peaks(),
        "Mixtures of experts (torchtitan 1117)": experts(),
    }
    publish(
        "Three public bug reports, beside remint",
        "\n\n".join(f"## {title}\n\n{table}" for title, table in parts.items()),
    )


if __name__ == "__main__":
    main()
