"""README and docs are run: every code block, every command, every link.

The blocks of one document run in order, in a folder of their own in which `train.py` (a block of getting_started.md),
`step.trace` and `step.graph` lie, and with the names `remint`, `model`, `x`, `target`, `optimizer` and `step`. A block
may be marked `not-run`; there are few.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import remint
from remint import Graph, generators
from remint.cli import main

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


class Block(NamedTuple):
    info: str
    line: int
    text: str


def blocks(path: Path) -> list[Block]:
    found: list[Block] = []
    info: str | None = None
    begin, lines = 0, []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.startswith("```"):
            lines.append(line)
        elif info is None:
            info, begin, lines = line[3:].strip(), number, []
        else:
            found.append(Block(info, begin, "\n".join(lines) + "\n"))
            info = None
    assert info is None, f"{path}: the block in line {begin} has no end"
    return found


def ids(path: Path) -> str:
    return path.stem


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    (script,) = [b for b in blocks(ROOT / "docs" / "getting_started.md") if b.info == "python file=train.py"]
    (tmp_path / "train.py").write_text(script.text)
    trace = generators.unet(3)
    trace.save(tmp_path / "step.trace")
    Graph.from_trace(trace).save(tmp_path / "step.graph")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "train", raising=False)
    module: dict[str, Any] = {"__name__": "train"}
    exec(script.text, module)
    model = module["Net"]()
    x = torch.randn(256, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(x, x).backward()
        optimizer.step()

    names = {"model": model, "x": x, "target": x, "optimizer": optimizer, "step": step}
    return {"__name__": "document", "remint": remint, **names}


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_every_block_says_what_it_is(path: Path) -> None:
    kinds = {"python", "python file=train.py", "sh", "text", "sh not-run", "python not-run"}
    assert {block.info for block in blocks(path)} <= kinds


def test_few_blocks_are_not_run() -> None:
    assert sum("not-run" in block.info for path in DOCUMENTS for block in blocks(path)) <= 2


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if any(b.info in ("python", "sh") for b in blocks(p))], ids=ids)
def test_the_blocks_run(path: Path, world: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks(path):
        if block.info == "python":
            exec(compile(block.text, f"{path.name}, the block in line {block.line}", "exec"), world)
        elif block.info == "sh":
            for line in block.text.splitlines():
                run_command(shlex.split(line, comments=True), capsys)


def run_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if not words:
        return
    command, *arguments = words
    # `make` and benchmarks take minutes: that they exist is checked here, CI and `make bench` run them.
    if command == "make":
        assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words
    elif command == "python":
        assert (ROOT / arguments[0]).is_file(), words
    else:
        assert command == "remint", f"{shlex.join(words)}: not a command that this test runs"
        if arguments[0] in ("run", "record"):
            # A process of its own, as the script is one.
            done = subprocess.run([sys.executable, "-m", "remint", *arguments], capture_output=True, check=False)
            assert done.returncode == 0, done.stderr.decode()
        else:
            assert main(arguments) == 0, capsys.readouterr().err


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", target):
            continue
        file, _, anchor = target.partition("#")
        goal = path.parent / file if file else path
        assert goal.exists(), f"{path.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", goal.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in headings}, target


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_files_that_are_named_exist(path: Path) -> None:
    for name in re.findall(r"`(?:python )?((?:benchmarks|examples|tests|src|csrc|docs)/[\w/.]+)`", path.read_text()):
        assert os.path.exists(ROOT / name), f"{path.name}: {name}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_modules_that_are_named_exist(path: Path) -> None:
    for name in re.findall(r"`((?:planners|report|results|trace|runtime|compiled)/[\w/]+\.\w+)`", path.read_text()):
        assert (ROOT / "src" / "remint" / name).is_file(), f"{path.name}: {name}"
