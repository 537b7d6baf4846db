"""`remint.fit` on real steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import remint


def test_fit_finds_more_than_fits_without(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(10)))
    found = remint.fit(
        lambda n: model(torch.randn(n, 64)).sum().backward(), [256, 512, 1024, 2048, 8192], budget="2MiB"
    )
    assert found.largest >= 2 * found.largest_without
    assert "the largest that fits is" in str(found)
    assert json.dumps(found.summary())
    pytest.importorskip("matplotlib")
    found.plot(tmp_path / "fit.png")
    assert (tmp_path / "fit.png").stat().st_size > 5_000
