"""`remint report`, `sweep`, `doctor` and `run`: files in, one file or one line out."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from remint import Graph, generators, plan, simulate, sweep
from remint.cli import main

TRACE = generators.unet(3)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    TRACE.save(tmp_path / "step.trace")
    TRACE.save(tmp_path / "packed.trace.gz")
    graph = Graph.from_trace(TRACE)
    graph.save(tmp_path / "step.graph")
    plan(graph, "60%", "chen-sqrt").save(tmp_path / "step.plan")
    simulate(TRACE, budget="60%", policy="coop", memory="arena", blocks=True).save(tmp_path / "run.json")
    sweep({"U-Net": TRACE}, budgets=["80%"], policies=["lru"]).to_json(tmp_path / "sweep.json")
    return tmp_path


def test_every_kind_of_file_is_told_apart(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("step.trace", "packed.trace.gz", "step.graph", "step.plan", "run.json", "sweep.json")
    paths = [str(files / name) for name in names]
    assert main(["report", *paths, "-o", str(files / "all.html"), "--title", "all of them"]) == 0
    assert str(files / "all.html") in capsys.readouterr().out
    assert "<title>all of them</title>" in (files / "all.html").read_text()


def test_a_trace_in_a_budget(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["report", str(files / "step.trace"), "--budget", "60%", "--json", "-"]
    assert main([*arguments, "--policy", "coop,lru", "-o", str(files / "two.html")]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["policy"] for run in runs.values()] == ["coop", "lru"]
    assert main([*arguments, "-o", str(files / "run.pickle")]) == 0
    assert pickle.loads((files / "run.pickle").read_bytes())["segments"]


def test_a_trace_in_a_budget_with_a_tier(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["report", str(files / "step.trace"), "--budget", "40%", "--offload", "1GiB", "--json", "-"]
    assert main([*arguments, "-o", str(files / "tier.html")]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"].values()
    assert run["num_fetches"] > 0
    assert "coop, with offload" in (files / "tier.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.json"], "none.json: No such file"),
        (["damaged.plan"], "damaged.plan says it is a remint.plan file, but is damaged"),
        (["bad.json"], "is no run, plan, graph, trace or sweep"),
        (["step.trace", "-o", "page.docx"], ".docx: a report is a .html"),
        (["step.trace", "run.json", "-o", "two.png"], "shows one item, not 2"),
        (["step.plan", "-o", "plan.pickle"], "viewer shows runs"),
        (["step.trace", "--budget", "x"], "not understood"),
        (["step.trace", "--offload", "1GiB"], "give --budget, too"),
    ],
)
def test_mistakes_get_one_line(
    files: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "bad.json").write_text("{}")
    (files / "damaged.plan").write_text('{"format": "remint.plan", "version": 1}')
    places = [str(files / a) if "." in a else a for a in arguments]
    assert main(["report", *places, *([] if "-o" in arguments else ["-o", str(files / "out.html")])]) == 2
    err = capsys.readouterr().err
    assert err.startswith("remint: ")
    assert message in err
    assert err.count("\n") == 1


def test_sweep_puts_planners_beside_policies(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step, page = str(files / "step.trace"), files / "sweep.html"
    arguments = ["--policy", "coop", "--planner", "chen-sqrt,keep", "--budget", "60%", "-o", str(page), "--json", "-"]
    assert main(["sweep", step, *arguments]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["policy"], row["status"]) for row in rows] == [
        ("coop", "ok"),
        ("plan: chen-sqrt", "ok"),
        ("plan: keep", "oom"),
    ]
    assert page.read_text().startswith("<!doctype html>")
    assert main(["sweep", step, "--planner", "best"]) == 2
    assert "there is no planner 'best'" in capsys.readouterr().err


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor"])
    out = capsys.readouterr().out
    assert code == 0, out
    for word in ("remint", "core", "simulate", "torch"):
        assert word in out
    assert main(["doctor", "--json", "-"]) == 0
    assert {finding["what"] for finding in json.loads(capsys.readouterr().out)} >= {"core", "budget"}


@pytest.mark.slow
def test_a_run_of_a_script_can_be_reported(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))\n"
        "model(torch.randn(512, 64)).square().mean().backward()\n"
    )
    run, page = tmp_path / "run.json", tmp_path / "run.html"
    command = [sys.executable, "-m", "remint", "run", "--budget", "1500KiB", "--json", str(run), "--report", str(page)]
    subprocess.run([*command, str(script)], check=True, capture_output=True)
    assert "rematerialized" in page.read_text()
    assert main(["report", str(run), "-o", str(tmp_path / "again.html")]) == 0


COMMANDS = ("run", "record", "fit", "capture", "plan", "simulate", "sweep", "trace", "report", "doctor", "build")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples_and_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "examples:\n  remint " in out
    assert "--json" in out or command == "trace"


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_80_columns(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([command, "--help"] if command else ["--help"])
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []
