"""Every example of every `--help` runs.

Those of one command run in order, in a folder with the files that they read.
"""

from __future__ import annotations

import gzip
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from remint.cli import main
from tests.trace.test_dtr_logs import START, call, constant

SCRIPT = """
import argparse
import torch

def step():
    layers = [part for _ in range(8) for part in (torch.nn.Linear(8, 8), torch.nn.Tanh())]
    return torch.nn.Sequential(*layers), (torch.randn(512, 8),), {}, torch.sum

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("epochs", "batch_size", "width", "height"):
        parser.add_argument(f"--{name}", type=int, default=8)
    parser.add_argument("--model")
    options = parser.parse_args()
    model, (x,), _, _ = step()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(10):
        model(x.repeat(options.batch_size, 1)).sum().backward()
        optimizer.step()
"""
COMMANDS = (
    "",
    "advise",
    "run",
    "record",
    "fit",
    "capture",
    "plan",
    "simulate",
    "sweep",
    "trace",
    "report",
    "doctor",
    "build",
)


def examples(command: str, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    with pytest.raises(SystemExit):
        main([command, "--help"] if command else ["--help"])
    _, _, text = capsys.readouterr().out.partition("examples:\n")
    # Beside an example there may be a text about it.
    lines = [line.strip().split("   ")[0] for line in text.splitlines() if line.strip()]
    found = [shlex.split(line) for line in lines]
    assert found
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pytest.importorskip("torch")
    from remint import Graph, Plan, generators, plan, simulate, sweep

    folder = tmp_path
    (folder / "train.py").write_text(SCRIPT)
    (folder / "package").mkdir()
    (folder / "package" / "train.py").write_text(SCRIPT)
    with gzip.open(folder / "resnet.log.gz", "wt") as log:
        log.writelines(
            f"{json.dumps(line)}\n" for line in [START, *constant("x", 64), *call("conv", ["x"], {"y": (64, -1)})]
        )
    shutil.copy(folder / "resnet.log.gz", folder / "resnet32.log.gz")
    trace = generators.chain(6)
    trace.save(folder / "step.trace")
    graph = Graph.from_trace(trace)
    graph.save(folder / "step.graph")
    made: Plan = plan(graph, "80%")
    made.save(folder / "step.plan")
    simulate(trace, budget="80%").save(folder / "run.json")
    sweep({"step": trace}, budgets=["80%"]).to_json(folder / "sweep.json")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_of_the_help_run(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in examples(command, capsys):
        assert words[0] == "remint", words
        call = [sys.executable, "-m", "remint", *words[1:]]
        done = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{shlex.join(words)}: {done.stderr}"
