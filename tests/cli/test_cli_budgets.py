"""Budgets that are not bytes: a percentage of what a script takes, and what is free."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from remint.cli.run import _Steps  # noqa: E402
from remint.runtime import budget  # noqa: E402
from remint.runtime.free_memory import automatic_budget, free_bytes  # noqa: E402

SCRIPT = """
import sys
import torch
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
optimizer = torch.optim.Adam(model.parameters())
for number in range(6):
    model(torch.randn(1024, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", number, flush=True)
    if "fail" in sys.argv:
        raise ValueError("the script's own mistake")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "remint", "run", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_percentage_is_of_the_peak_without_a_budget(script: Path, tmp_path: Path) -> None:
    free = run("--budget", "1GiB", "--stop-after", "2", "--json", tmp_path / "free.json", script)
    assert free.returncode == 0, free.stderr
    peak = json.loads((tmp_path / "free.json").read_text())["peak_bytes"]
    done = run("--budget", "70%", "--json", tmp_path / "run.json", script)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "run.json").read_text())
    assert figures["budget_bytes"] == peak * 70 // 100
    assert figures["peak_bytes"] <= figures["budget_bytes"]
    assert figures["num_rematerializations"] > 0
    # Only the run in the budget prints.
    assert done.stdout.splitlines() == [f"step {number}" for number in range(6)]
    assert "70% of that are" in done.stderr


@pytest.mark.slow
def test_a_script_can_be_stopped_after_some_steps(script: Path) -> None:
    done = run("--budget", "1GiB", "--stop-after", "2", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "step 0\n"


@pytest.mark.slow
def test_a_script_that_fails_while_it_is_measured_is_shown(script: Path) -> None:
    done = run("--budget", "70%", script, "fail")
    assert done.returncode == 2
    assert "could not be measured" in done.stderr
    assert "the script's own mistake" in done.stderr


def test_auto_is_nine_tenths_of_what_is_free() -> None:
    before = free_bytes("cpu")
    with budget("auto") as live:
        chosen = live.budget_bytes
        x = torch.ones(1 << 20)
        assert x.sum() == 1 << 20
    assert 0.5 * before < chosen <= 0.95 * max(before, free_bytes("cpu"))


def test_what_cannot_be_known_is_an_error() -> None:
    with pytest.raises(ValueError, match="known for the CPU only"):
        automatic_budget("cuda")
    with pytest.raises(ValueError, match=r"remint run --budget 60% script\.py"):
        budget("60%")


def test_slow_steps_are_named_less_and_less_often(capsys: pytest.CaptureFixture[str]) -> None:
    known = [None, 9 << 20, None, None]
    figures = SimpleNamespace(
        computed_seconds=0.0, rematerialized_seconds=0.0, budget_bytes=5 << 20, budget_for=lambda _: known.pop(0)
    )
    steps = _Steps(stop_after=9)
    steps.run = figures  # type: ignore[assignment]
    ended = []
    for number in range(1, 10):
        figures.computed_seconds += 1.0
        # The sixth step is quick.
        figures.rematerialized_seconds += 11.0 if number != 6 else 0.5
        ended.append(steps.ended())
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1] for line in lines] == [f" step {number}, 12x slower" for number in (1, 2, 4, 8)]
    assert "5.0 MiB is small for it. " in lines[0]
    assert "5.0 MiB is small for it; about 9MiB would do. " in lines[1]
    assert ended == [False] * 8 + [True]
