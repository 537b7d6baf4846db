"""`remint fit`: the largest size of a script that trains inside a budget."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remint.cli import main

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
