"""Every example runs, in seconds, and finds the same bits inside its budget."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NEEDS = {
    "accelerate_ddp": ("torch", "accelerate"),
    "accelerate_loop": ("torch", "accelerate"),
    "accumulate_autocast": ("torch",),
    "hf_trainer": ("torch", "transformers", "accelerate"),
    "lightning_ddp": ("torch", "lightning"),
    "lightning_module": ("torch", "lightning"),
    "plain_loop": ("torch",),
    "policies": (),
    "ray_train": ("torch", "ray.train.torch"),
    "tree_lstm": ("torch",),
}


def test_every_example_is_here() -> None:
    assert sorted(NEEDS) == sorted(path.stem for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", NEEDS)
def test_example(name: str) -> None:
    for package in NEEDS[name]:
        pytest.importorskip(package)
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    if "torch" in NEEDS[name]:
        assert "the same bits: True" in done.stdout


@pytest.mark.slow
def test_the_notebook() -> None:
    pytest.importorskip("torch")
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    world: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), world)
    # What these two show at the end of their cells.
    assert "recommended" in world["advice"]._repr_html_()  # type: ignore[attr-defined]
    assert "ran again" in world["run"]._repr_html_()  # type: ignore[attr-defined]


def test_the_demo_measures() -> None:
    pytest.importorskip("torch")
    budget = 24 << 20
    ways = [
        {"way": "plain"},
        {"way": "torch-blocks"},
        {"way": "online", "budget": budget},
        {"way": "online", "budget": 1},
    ]
    asked = "\n".join(json.dumps({"model": "unet", "steps": 2} | way) for way in [*ways, {"way": "magic"}])
    command = [sys.executable, str(EXAMPLES / "demo" / "measure.py")]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plain, blocks, online, impossible, unknown = map(json.loads, done.stdout.splitlines())
    assert plain["status"] == blocks["status"] == online["status"] == "ok"
    assert online["peak"] <= budget < plain["peak"]
    assert online["digest"] == plain["digest"]
    assert blocks["digest"] != plain["digest"], "batch norm counts twice"
    assert impossible["status"] == "does not fit"
    assert unknown["status"] == "failed"
