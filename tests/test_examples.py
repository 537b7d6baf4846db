"""Every example runs, in seconds, and finds the same bits inside its budget."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NEEDS = {
    "accumulate_autocast": ("torch",),
    "hf_trainer": ("torch", "transformers", "accelerate"),
    "lightning_module": ("torch", "lightning"),
    "plain_loop": ("torch",),
    "policies": (),
    "tree_lstm": ("torch",),
}


def test_every_example_is_here() -> None:
    assert sorted(NEEDS) == sorted(path.stem for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", NEEDS)
def test_example(name: str) -> None:
    for package in NEEDS[name]:
        pytest.importorskip(package)
    done = subprocess.run([sys.executable, str(EXAMPLES / f"{name}.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if "torch" in NEEDS[name]:
        assert "the same bits: True" in done.stdout


@pytest.mark.parametrize("way", [["plain"], ["torch-blocks"], ["online", "--budget", "24MiB"]], ids=lambda way: way[0])
def test_the_demo_measures(way: list[str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    way = [str(24 << 20) if word == "24MiB" else word for word in way]
    command = [sys.executable, str(EXAMPLES / "demo" / "measure.py"), "unet", *way, "--steps", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert row["status"] == "ok"
    assert row["peak"] > 10 << 20
    if way[0] == "online":
        assert row["peak"] <= 24 << 20
