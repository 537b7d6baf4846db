"""Advice without running anything: fake tensors and the rates of a device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import remint  # noqa: E402
from remint.advice.devices import DEVICES, Device, device_named  # noqa: E402
from remint.advice.fake import advise_fake  # noqa: E402


def step(width: int = 64, rows: int = 1024) -> Any:
    model = nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(width, width), nn.ReLU())))
    return model, (torch.randn(rows, width),), None, lambda y: y.square().mean()


def test_the_peak_is_that_of_a_real_step() -> None:
    advice = advise_fake(step, subject="step", device=DEVICES["a100-80gb"], optimizer="sgd")
    model, args, _, loss = step()
    weights = sum(weight.nbytes for weight in model.parameters()) + args[0].nbytes
    with remint.budget("64MiB") as run:
        loss(model(*args)).backward()
    assert advice.fits
    assert abs(advice.peak_bytes - weights - run.peak_bytes) <= 0.1 * run.peak_bytes


def test_nothing_is_allocated() -> None:
    # Weights of 4 TiB.
    advice = advise_fake(lambda: step(1 << 19, 8), subject="step", device=DEVICES["h100-80gb"])
    assert advice.peak_bytes > 16 << 40
    assert advice.fits is False
    kinds = {holder.kind: holder.nbytes for holder in advice.holders}
    assert kinds["optimizer state"] == 2 * kinds["weights"]
    assert "does not fit in 80GiB" in advice.verdict()


def test_a_step_that_no_budget_helps() -> None:
    """Weights, gradients and optimizer state are all that there is."""
    advice = advise_fake(lambda: step(4096, 1), subject="step", device=DEVICES["a100-80gb"])
    assert advice.recommended is None
    assert advice.used is None
    assert "first steps" not in str(advice)
    assert "Nothing works below" in str(advice)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 64)
        self.memory = nn.LSTM(64, 64, batch_first=True)
        self.norm = nn.BatchNorm1d(64)
        self.head = nn.Linear(64, 100, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Any) -> Any:
        return self.head(self.norm(self.memory(self.embedding(x))[0].flatten(0, 1)))


@pytest.mark.parametrize("convert", [lambda m: m.to(torch.bfloat16), lambda m: m.half().bfloat16()])
def test_weights_are_converted(convert: Any) -> None:
    def make() -> Any:
        return convert(Tied()), (torch.zeros(8, 16, dtype=torch.long),), None, lambda y: y.float().square().mean()

    before = nn.Module._apply
    advice = advise_fake(make, subject="step", device=DEVICES["a100-80gb"])
    assert nn.Module._apply is before
    weights = {holder.kind: holder.nbytes for holder in advice.holders}["weights"]
    assert weights == sum(weight.nbytes for weight in Tied().bfloat16().parameters())


def test_costs_follow_the_device() -> None:
    slow = Device(name="slow", memory_bytes=1 << 40, bytes_per_second=1e9, flops_16_bits=1e9, flops_32_bits=1e9)
    made = [advise_fake(step, subject="step", device=device) for device in (slow, DEVICES["h100-80gb"])]
    flops = 6 * 1024 * 64 * 64 * 6
    assert made[0].step_seconds >= flops / 1e9 * 0.8
    assert made[1].step_seconds < made[0].step_seconds / 10


def test_devices_come_from_the_table_or_a_file(tmp_path: Path) -> None:
    data = {"memory_bytes": 1 << 30, "bytes_per_second": 1e9, "flops_16_bits": 1e12, "flops_32_bits": 1e11}
    (tmp_path / "mine.json").write_text(json.dumps(data))
    assert device_named(str(tmp_path / "mine.json")).memory_bytes == 1 << 30
    with pytest.raises(ValueError, match="choose one of v100"):
        device_named("abacus")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ValueError, match="no description of a device"):
        device_named(str(tmp_path / "bad.json"))
