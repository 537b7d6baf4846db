"""The search for the largest size, on its own, on the runtime and from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remint.cli import main
from remint.results.largest_fit import Attempt, find_largest


@pytest.mark.parametrize("limit", [0, 1, 7, 8, 37, 99, 100, 500])
def test_the_search_is_exact_and_short(limit: int) -> None:
    tried: list[int] = []

    def attempt(size: int) -> Attempt:
        tried.append(size)
        return Attempt(size=size, fits=size <= limit, seconds=1.0)

    found = find_largest(attempt, range(1, 101), budget=1024)
    assert found.largest == (min(limit, 100) or None)
    assert len(tried) == len(set(tried)) <= 14
    assert found.budget_bytes == 1024


def test_mistakes_are_told() -> None:
    for sizes in ([], [0, 3], [3, 2]):
        with pytest.raises(ValueError, match="sizes"):
            find_largest(lambda size: Attempt(size=size, fits=True), sizes, budget=1)


def test_fit_finds_more_than_fits_without(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import remint

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


SCRIPT = """
import argparse, sys, torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, required=True)
batch = parser.parse_args().batch
if batch == 13:
    raise RuntimeError("thirteen")
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
model(torch.randn(batch * 64, 64)).sum().backward()
"""


def test_fit_of_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert main(["fit", str(script), "--vary", "batch=8,16,4096", "--budget", "3MiB", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["largest"] in (8, 16)
    assert [attempt["fits"] for attempt in found["attempts"]][-1] is False
    assert main(["fit", str(script), "--vary", "batch=13,14", "--budget", "3MiB"]) == 2
    assert "RuntimeError: thirteen" in capsys.readouterr().err
    for vary in ("batch", "batch=5:2", "batch=a,b", "=1,2"):
        assert main(["fit", str(script), "--vary", vary, "--budget", "3MiB"]) == 2
        assert "not understood" in capsys.readouterr().err
