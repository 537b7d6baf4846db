"""The command line: tables for people, rows for programs, one line for mistakes."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import remint
from remint import generators
from remint.cli import main
from remint.cli.parser import _parser


@pytest.fixture
def step(tmp_path: Path) -> str:
    path = tmp_path / "step.trace"
    generators.unet(3).save(path)
    return str(path)


def test_simulate_prints_a_table(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", step, "--policy", "all", "--budget", "80%,60%", "--memory", "arena"]) == 0
    out = capsys.readouterr().out
    for word in ("step", "coop", "dte", "random", "slowdown", "fragmentation", "80%", "60%"):
        assert word in out
    assert "…" not in out


def test_a_budget_without_a_unit_asks_back(step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("simulate SCRIPT --budget 2", "sweep SCRIPT --budget 2", "advise --fits 2 SCRIPT"):
        assert main([step if word == "SCRIPT" else word for word in command.split()]) == 2
        assert "2 is 2 bytes: did you mean 2GiB?" in capsys.readouterr().err
    # What has few bytes may have a budget of few.
    small = tmp_path / "small.trace"
    generators.unet(3, nbytes=8).save(small)
    assert main(["simulate", str(small), "--budget", "20"]) == 0


def test_simulate_writes_rows(step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", step, "--policy", "lru,dtr", "--budget", "70%", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["policy"] for row in rows] == ["lru", "dtr"]
    assert main(["simulate", step, "--budget", "70%", "--csv", str(tmp_path / "rows.csv")]) == 0
    assert (tmp_path / "rows.csv").read_text().startswith("trace,budget,status,policy")


def test_simulate_with_a_tier(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", step, "--budget", "40%", "--offload", "1GiB", "--bandwidth", "8GB"]
    assert main(words) == 0
    assert "fetches" in capsys.readouterr().out
    assert main([*words, "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    tier = remint.Offload(bytes="1GiB", bandwidth="8GB")
    alone = remint.simulate(step, budget="40%", policy="coop", memory="arena", max_slowdown=10, offload=tier)
    assert row["num_fetches"] == alone.num_fetches > 0
    assert row["slowdown"] == alone.slowdown


def test_trace_info(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "info", step]) == 0
    out = capsys.readouterr().out
    assert "least budget" in out
    assert "peak" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "5x"], "not understood"),
        (["--memory", "ideal", "--policy", "coop"], "needs memory='arena'"),
        (["--policy", "best"], "there is no policy 'best'"),
        (["--jobs", "0"], "jobs"),
        (["--bandwidth", "8GB"], "say how much the tier holds"),
        (["--offload", "some"], "not understood"),
        (["--offload", "1GiB", "--memory", "ideal"], "needs memory='arena'"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(
    step: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", step, *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("remint: ")
    assert message in err
    assert err.count("\n") == 1


def test_a_missing_or_broken_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(tmp_path / "none.trace")]) == 2
    assert "none.trace" in capsys.readouterr().err
    (tmp_path / "bad.trace").write_text("{}\n")
    assert main(["trace", "info", str(tmp_path / "bad.trace")]) == 2
    assert "bad.trace" in capsys.readouterr().err


def test_simulations_and_runs_share_defaults() -> None:
    parser = _parser()
    ran, fitted, simulated, swept = (
        parser.parse_args(words)
        for words in (
            ["run", "--budget", "1MiB", "train.py"],
            ["fit", "train.py", "--vary", "n=1,2", "--budget", "1MiB"],
            ["simulate", "step.trace"],
            ["sweep", "step.trace"],
        )
    )
    assert (
        ran.policy == fitted.policy == simulated.policy == inspect.signature(remint.budget).parameters["policy"].default
    )
    assert (
        ran.max_slowdown
        == fitted.max_slowdown
        == simulated.max_slowdown
        == swept.max_slowdown
        == inspect.signature(remint.budget).parameters["max_slowdown"].default
    )
    assert simulated.memory == swept.memory == "arena"


def test_help_has_examples() -> None:
    for arguments in (["--help"], ["simulate", "--help"]):
        result = subprocess.run(
            [sys.executable, "-m", "remint", *arguments], capture_output=True, text=True, check=True
        )
        assert "examples:" in result.stdout
