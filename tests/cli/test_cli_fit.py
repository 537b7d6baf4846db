"""`remint fit`: the largest size of a script that trains inside a budget."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from remint.cli import main
from remint.cli.fit_attempts import _run

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


@pytest.mark.slow
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
    # What was found before a script fails is kept.
    assert main(["fit", str(script), "--vary", "batch=8,13", "--budget", "1GiB"]) == 2
    shown = capsys.readouterr()
    assert "RuntimeError: thirteen" in shown.err
    assert "       8  yes" in shown.out
    with pytest.raises(SystemExit):
        main(["fit", str(script), "--vary", "batch=8", "--budget", "1GiB", "--model", "gpt2"])
    assert "The script's own arguments follow --" in capsys.readouterr().err
    for vary in ("batch", "batch=5:2", "batch=a,b", "=1,2"):
        assert main(["fit", str(script), "--vary", vary, "--budget", "3MiB"]) == 2
        assert "not understood" in capsys.readouterr().err


def test_slow_steps_are_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    slow = (
        "remint: step 3, 12x slower: the budget of 8.8 MiB is small for it; about 24.5MiB would do. "
        "`remint advise` finds a better one."
    )
    first = (
        "graph.py:9: UserWarning: remint: this step is 34.1x slower so far, because 4.1 MiB are few. At 10x it ends."
    )
    code = (
        f"import sys; print('out'); [print(line, file=sys.stderr) for line in ({slow!r}, 'other', {first!r})]; exit(3)"
    )
    ended, said = _run([sys.executable, "-c", code], "batch 8", dict(os.environ))
    assert ended == 3
    assert said.splitlines() == [slow, "other", first]
    assert capsys.readouterr().err.splitlines() == [
        "batch 8: step 3, 12x slower: the budget of 8.8 MiB is small for it; about 24.5MiB would do.",
        "batch 8: this step is 34.1x slower so far, because 4.1 MiB are few.",
    ]
    assert _run([sys.executable, "-c", "print('only this')"], "batch 8", dict(os.environ)) == (0, "only this\n")


@pytest.mark.slow
def test_terminated_it_keeps_what_it_found(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(
        SCRIPT.replace("if batch == 13:", "if batch == 16: import time; time.sleep(600)\nif 0:")
    )
    words = [sys.executable, "-m", "remint", "fit", tmp_path / "train.py", "--vary", "batch=8,16", "--budget", "1GiB"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("batch 8: fits")
        process.terminate()
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "       8  yes" in shown
    assert "the largest that fits is 8" in shown


def test_a_limit_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["fit", str(tmp_path / "train.py"), "--vary", "batch=8", "--budget", "1GiB", "--max-slowdown", "0.5"]
    assert main(words) == 2
    assert "--max-slowdown is more than 1" in capsys.readouterr().err
