"""README and docs: every code block and every `remint` command of a block runs, every link and every name is checked.

The blocks of one document run in order, in a folder of their own in which `train.py` (a block of getting_started.md),
`step.trace` and `step.graph` lie, and with the names `remint`, `model`, `x`, `target`, `optimizer` and `step`. A block
may be marked `not-run`; there are few. A block marked `ranks` is a script of its own, which runs on two ranks.

Two kinds of commands take minutes to hours and do not run here. A `make` command must be one that make knows. A
benchmark must be part of `make bench`, with the same options.
"""

from __future__ import annotations

import functools
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
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("benchmarks", "csrc", "docs", "examples", "src", "tests")


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
            assert not re.match(r"\s*(```|~~~)", line), f"{path}:{number}: blocks begin in the first column"
            lines.append(line)
        elif info is None:
            info, begin, lines = line[3:].strip(), number, []
        else:
            found.append(Block(info, begin, "\n".join(lines) + "\n"))
            info = None
    assert info is None, f"{path}: the block in line {begin} has no end"
    return found


def inline_code(path: Path) -> list[str]:
    """What stands between backquotes in the text, without the blocks."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`]+)`", text)


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT).with_suffix(""))


@functools.cache
def dry_run(*arguments: str) -> str:
    """The commands that `make` would run."""
    # Under `make test` these would make it believe that it is a part of that make.
    environment = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "--dry-run", "--no-print-directory", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr}"
    return done.stdout


def check_script(words: list[str]) -> None:
    """A script of this repository that takes long: it is there, and `make bench` runs it in the same way."""
    script, *arguments = words
    assert (ROOT / script).is_file(), words
    if script.startswith("benchmarks/"):
        lines = (dry_run("bench") + dry_run("bench", "FULL=1")).splitlines()
        ways = [shlex.split(line)[1:] for line in lines if "python benchmarks/" in line]
        # The models that a benchmark runs on are the reader's choice; its options are not.
        ways_to_ask = [way[1:] for way in ways if way[:1] == [script]]
        options = {word for word in arguments if word.startswith("-")}
        assert any(options <= set(way) for way in ways_to_ask), f"make bench does not run {shlex.join(words)}"


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
    kinds = {"python", "python ranks", "python file=train.py", "sh", "text", "sh not-run", "python not-run"}
    assert {block.info for block in blocks(path)} <= kinds


def test_few_blocks_are_not_run() -> None:
    assert sum("not-run" in block.info for path in DOCUMENTS for block in blocks(path)) <= 5


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if any(b.info in ("python", "sh") for b in blocks(p))], ids=ids)
def test_the_blocks_run(path: Path, world: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks(path):
        if block.info == "python":
            exec(compile(block.text, f"{path.name}, the block in line {block.line}", "exec"), world)
        elif block.info == "sh":
            for line in block.text.splitlines():
                run_command(shlex.split(line, comments=True), capsys)


RANKED = [(path, block) for path in DOCUMENTS for block in blocks(path) if block.info == "python ranks"]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "block"), RANKED, ids=[f"{ids(path)}-{block.line}" for path, block in RANKED])
def test_the_blocks_for_ranks_run_on_two(path: Path, block: Block, tmp_path: Path) -> None:
    dist = pytest.importorskip("torch.distributed")
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("needs gloo")
    script = tmp_path / "script.py"
    script.write_text(block.text)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, f"{path.name}, the block in line {block.line}: {done.stderr[-4000:]}"
    # Each rank says what it recomputed.
    assert done.stdout.count("rematerializations") >= 2, done.stdout


def run_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if not words:
        return
    command, *arguments = words
    if command == "make":
        dry_run(*arguments)
    elif command == "python":
        check_script(arguments)
    elif command == ".venv/bin/python" and arguments[:2] == ["-m", "pytest"]:
        done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
    else:
        assert command == "remint", f"{shlex.join(words)}: not a command that this test runs"
        if arguments[0] in ("run", "record", "advise"):
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
    for code in inline_code(path):
        name = code.removeprefix("python ").split()[0]
        if name.startswith(tuple(f"{folder}/" for folder in FOLDERS)):
            assert any(ROOT.glob(name.rstrip("/"))), f"{path.name}: {code}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_commands_in_the_text_exist(path: Path) -> None:
    for code in inline_code(path):
        # "…" and "..." stand for what the reader fills in.
        words = [word for word in code.split() if word not in ("…", "...")]
        if words[0] == "make" and len(words) > 1:
            dry_run(*words[1:])
        elif words[0] == "python" and len(words) > 1 and "/" in words[1]:
            check_script(words[1:])
        elif words[0] == "remint" and len(words) > 1:
            with pytest.raises(SystemExit) as done:
                main([words[1], "--help"])
            assert done.value.code == 0, f"{path.name}: {code}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_modules_that_are_named_exist(path: Path) -> None:
    for name in re.findall(r"`((?:planners|report|results|trace|runtime|compiled)/[\w/]+\.\w+)`", path.read_text()):
        assert (ROOT / "src" / "remint" / name).is_file(), f"{path.name}: {name}"
