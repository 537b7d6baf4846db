"""The command line: tables for people, rows for programs, one line for mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from remint import generators
from remint.cli import main


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


def test_simulate_writes_rows(step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", step, "--policy", "lru,dtr", "--budget", "70%", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["policy"] for row in rows] == ["lru", "dtr"]
    assert main(["simulate", step, "--budget", "70%", "--csv", str(tmp_path / "rows.csv")]) == 0
    assert (tmp_path / "rows.csv").read_text().startswith("trace,budget,status,policy")


def test_trace_info(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "info", step]) == 0
    out = capsys.readouterr().out
    assert "least budget" in out
    assert "peak" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "5x"], "not understood"),
        (["--policy", "coop"], "needs memory='arena'"),
        (["--policy", "best"], "there is no policy 'best'"),
        (["--jobs", "0"], "jobs"),
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


def test_help_has_examples() -> None:
    for arguments in (["--help"], ["simulate", "--help"]):
        result = subprocess.run(
            [sys.executable, "-m", "remint", *arguments], capture_output=True, text=True, check=True
        )
        assert "examples:" in result.stdout
