"""`remint run`: what it prints, in which language, and what it makes of mistakes. Each run is a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

SCRIPT = """
import argparse, sys, time
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--wide", type=int, default=512)
parser.add_argument("--then", default="end")
options = parser.parse_args()
print("the script prints", flush=True)
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
model(torch.randn(options.wide, 64)).square().mean().backward()
if options.then == "fail":
    raise ValueError("the script's own mistake")
if options.then == "exit":
    sys.exit(3)
if options.then == "wait":
    print("waiting", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "remint", "run", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_summary_speaks_of_memory_and_time(script: Path) -> None:
    done = run("--budget", "1MiB", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the script prints\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("remint: Fitted into 1.0 MiB (peak ")
    assert "slower" in line or "times as slow" in line
    assert "ops ran again" in line


def test_verbose_adds_the_figures_of_the_engine(script: Path) -> None:
    done = run("--budget", "1GiB", "-v", script)
    assert "without recomputing anything" in done.stderr
    assert "evictions" in done.stderr
    assert "fragmentation" in done.stderr


def test_json_on_standard_output_is_json_alone(script: Path) -> None:
    done = run("--budget", "1GiB", "--json", "-", script)
    assert json.loads(done.stdout)["status"] == "ok"
    assert "the script prints" in done.stderr


def test_the_summary_says_how_the_script_failed(script: Path) -> None:
    failed = run("--budget", "1GiB", script, "--then", "fail")
    assert failed.returncode == 1
    assert "remint: The script failed: ValueError, see above." in failed.stderr
    traceback = failed.stderr.partition("ValueError")[0]
    assert traceback.startswith("Traceback (most recent call last):\n")
    assert "train.py" in traceback
    assert not [word for word in ("remint/", "runpy") if word in traceback], traceback
    ended = run("--budget", "1GiB", "--json", "-", script, "--then", "exit")
    assert ended.returncode == 3
    assert "exit code 3" in ended.stderr
    assert json.loads(ended.stdout)["exit_code"] == 3


def test_too_small_a_budget_is_explained_once(script: Path) -> None:
    done = run("--budget", "200KiB", script)
    assert done.returncode == 1
    assert done.stderr.count("is too small for") == 1
    assert "remint: The script failed: its budget is too small, see above." in done.stderr
    assert "remint: Did not fit into 200.0 KiB." in done.stderr


def listen_to_ctrl_c() -> None:
    """Undo what a shell does to jobs in the background: they ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(("number", "code", "said"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "int")])
def test_a_run_that_is_stopped_prints_its_summary(script: Path, number: int, code: int, said: str) -> None:
    command = [sys.executable, "-m", "remint", "run", "--budget", "1GiB", str(script), "--then", "wait"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, preexec_fn=listen_to_ctrl_c) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "waiting\n":
                break
        time.sleep(0.1)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert f"remint: The script was {said}" in err
    assert "remint: Until then it fitted into 1.0 GiB" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "2", "SCRIPT"], "--budget 2 is 2 bytes: did you mean 2GiB?"),
        (["--budget", "2GiB", "--json", "no/such/run.json", "SCRIPT"], "there is no folder 'no/such'"),
        (["--budget", "2GiB", "--report", ".", "SCRIPT"], "it is a folder"),
        (["--budget", "2GiB", "none.py"], "there is no file 'none.py'"),
        (["--budget", "2GiB,3", "SCRIPT"], "--budget 3 is 3 bytes: did you mean 3GiB?"),
        (["SCRIPT", "--budget", "2GiB"], "Options of remint come before the script"),
        (["--budget", "2GiB", "SCRIPT", "--report", "run.html"], "Hint: --report came after the script's name"),
    ],
)
def test_mistakes_are_named_before_the_script_runs(script: Path, arguments: list[str], message: str) -> None:
    done = run(*[str(script) if word == "SCRIPT" else word for word in arguments])
    assert done.returncode == 2
    assert message in done.stderr
    assert "the script prints" not in done.stdout


def test_a_file_of_another_kind_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from remint import Graph, generators
    from remint.cli import main

    trace, graph = tmp_path / "step.trace", tmp_path / "step.graph"
    generators.unet(2).save(trace)
    Graph.from_trace(generators.unet(2)).save(graph)
    assert main(["plan", str(trace), "--budget", "50%"]) == 2
    assert "is a trace, and a plan needs a graph" in capsys.readouterr().err
    assert main(["simulate", str(graph)]) == 2
    assert "is a graph, not a trace" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_tables_fit_the_terminal(tmp_path: Path, columns: int) -> None:
    from remint import generators

    generators.unet(2).save(tmp_path / "step.trace")
    # A terminal: rich asks the environment, as a real one sets it.
    environment = {**os.environ, "COLUMNS": str(columns), "FORCE_COLOR": "1", "TERM": "xterm"}
    command = [sys.executable, "-m", "remint", "simulate", str(tmp_path / "step.trace"), "--memory", "arena"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    out = re.sub(r"\x1b\[[\d;]*m", "", done.stdout)
    assert max(len(line.rstrip()) for line in out.splitlines()) <= columns
    assert "slowdown" in out
    assert ("fragmentation" in out) == (columns == 200)
    assert ("A wider terminal also shows" in done.stderr) == (columns < 200)
    assert all(len(line) <= columns for line in done.stderr.splitlines())
