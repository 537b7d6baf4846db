"""One version in all places, and a complete list of public names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import remint
from remint.cli import main

ROOT = Path(__file__).resolve().parents[1]


def test_the_version_is_the_same_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"remint {remint.__version__}\n"
    assert f"\nversion: {remint.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^## {re.escape(remint.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_all_public_names_are_listed_and_there() -> None:
    pytest.importorskip("torch")
    code = (
        "import remint\n"
        "assert set(remint.__all__) <= set(dir(remint)), set(remint.__all__) - set(dir(remint))\n"
        "for name in remint.__all__: getattr(remint, name)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_citation_names_the_papers() -> None:
    text = (ROOT / "CITATION.cff").read_text()
    for paper in ("2006.09616", "2311.00591", "1910.02653"):
        assert f"arXiv:{paper}" in text


def test_the_hosted_workflow_runs_what_ci_runs() -> None:
    run = (ROOT / ".ci" / "run").read_text()
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    targets = re.search(r"target: \[(.*)\]", workflow)
    assert targets is not None
    assert targets[1].split(", ") == re.findall(r"^make (\S+)$", run, re.MULTILINE)


def test_the_api_reference_has_every_public_name() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    assert [name for name in remint.__all__ if f"`remint.{name}`" not in text] == []
