"""`remint run` on two ranks over loopback: who gets the budget, and what rank 0 shows of all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch.distributed as dist

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("needs gloo", allow_module_level=True)

from remint.cli import launch, main
from remint.cli.parser import _parser
from remint.cli.rank_exchange import RankExchange, path_of_rank
from remint.runtime import free_memory
from remint.runtime.rank import Rank

# Rank 1 has twice the batch.
SCRIPT = """
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(8)))
)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(256 * (1 + rank), 64)).square().mean().backward()
    optimizer.step()
    if rank == 1 and "fail" in sys.argv:
        raise ValueError("the script's own mistake")
"""
# The peaks of the ranks without a budget are 1.2 and 2.1 MiB.


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_ranks_get_all_options() -> None:
    words = ["--budget", "1MiB", "--stop-after", "2", "--policy", "lru", "--overflow", "spill", "--offload", "8MiB"]
    words += ["--max-slowdown", "3.0", "--json", "a.json", "--report", "a.html", "--source-lines", "--verbose"]
    options = _parser().parse_args(["run", "--nproc", "2", *words, "train.py", "--epochs", "3"])
    # None is left out, and each is what it would be on one rank.
    assert options.own_options - set(words) == {"--nproc", "-v"}
    worker = ["run", "--budget", options.budget, *launch._own_options(options), "train.py", "--epochs", "3"]
    assert vars(_parser().parse_args(worker)) | {"nproc": 2} == vars(options)


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("remint: ")]


@pytest.mark.slow
def test_two_ranks_with_a_budget_each(script: Path, tmp_path: Path) -> None:
    files = ["--json", tmp_path / "run.json", "--report", tmp_path / "run.html"]
    done = run("-m", "remint", "run", "--nproc", "2", "--budget", "4MiB,1500KiB", *files, script)
    assert done.returncode == 0, done.stderr
    runs = [json.loads((tmp_path / f"run.{rank}.json").read_text()) for rank in range(2)]
    assert [each["budget_bytes"] for each in runs] == [4 << 20, 1500 << 10]
    assert runs[0]["num_rematerializations"] == 0
    assert runs[1]["num_rematerializations"] > 0
    assert all(each["peak_bytes"] <= each["budget_bytes"] and each["collective_seconds"] > 0 for each in runs)
    said = lines_of(done.stderr)
    assert sum(line.startswith("remint: rank 0: Fitted into 4.0 MiB without recomputing") for line in said) == 1
    assert sum(line.startswith("remint: rank 1: Fitted") and "ran again" in line for line in said) == 1
    # One table, by rank 0.
    assert sum(line.split()[1:4] == ["rank", "budget", "peak"] for line in said) == 1
    assert sum(line.startswith("remint: Slowest: rank ") for line in said) == 1
    assert not (tmp_path / "run.json").exists()
    page = (tmp_path / "run.html").read_text()
    assert "train.py on 2 ranks" in page
    assert all(f'"label":"rank {rank}: coop' in page for rank in range(2))
    assert page.count("in collectives, with waiting for other ranks") == 2


@pytest.mark.slow
def test_torchrun_and_a_part_of_the_largest_peak(script: Path) -> None:
    worker = ["-m", "remint", "run", "--budget", "70%", "--json", "-", script]
    done = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *worker)
    assert done.returncode == 0, done.stderr
    ranks = json.loads(done.stdout)["ranks"]
    assert [each["rank"] for each in ranks] == [0, 1]
    # Rank 1 needs nearly twice as much as rank 0, which therefore fits.
    assert ranks[0]["budget_bytes"] == ranks[1]["budget_bytes"]
    assert ranks[0]["num_rematerializations"] == 0
    assert ranks[1]["num_rematerializations"] > 0
    assert done.stderr.count("The rank that needs most takes") == 1


@pytest.mark.slow
def test_a_script_that_fails_on_one_rank(script: Path) -> None:
    done = run("-m", "remint", "run", "--nproc", "2", "--budget", "8MiB", script, "fail")
    assert done.returncode != 0
    assert "remint: rank 1: The script failed: ValueError, see above." in done.stderr
    # Rank 0 shows the table all the same.
    assert sum(line.split()[1:4] == ["rank", "budget", "peak"] for line in lines_of(done.stderr)) == 1


def launched(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    commands: list[list[str]] = []

    def keep(command: list[str]) -> int:
        commands.append(command)
        return 7

    monkeypatch.setattr(launch, "_run", keep)
    assert main(["run", *words]) == 7
    return commands[0]


def test_a_launcher_gets_the_budget_for_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = ["-m", "remint", "run", "--budget", "2GiB"]
    module = ["--budget", "2GiB", "--json", "run.json", "-m", "torch.distributed.run"]
    for words, launcher, script in [
        (["--nproc-per-node", "2", "train.py", "--lr", "1"], ["--nproc-per-node", "2"], ["train.py", "--lr", "1"]),
        (
            ["--nproc-per-node=2", "-m", "package.train", "-m"],
            ["--nproc-per-node=2", "-m"],
            ["-m", "package.train", "-m"],
        ),
        (["--standalone", "train.py"], ["--standalone"], ["train.py"]),
    ]:
        command = launched(monkeypatch, *module, *words)
        assert command[:3] == [sys.executable, "-m", "torch.distributed.run"]
        assert command[3 : 3 + len(launcher)] == launcher
        rest = command[3 + len(launcher) :]
        assert rest[: len(ours)] == ours
        assert rest[-len(script) :] == script
        assert rest[rest.index("--json") + 1] == "run.json"


def test_torchrun_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    command = launched(monkeypatch, "--budget", "2GiB", "torchrun", "--nproc-per-node", "2", "train.py")
    assert command[1:5] == ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    assert command[5:8] == ["-m", "remint", "run"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nproc", "0", "SCRIPT"], "--nproc is 1 process or more"),
        (["--nproc", "2", "none.py"], "there is no file 'none.py'"),
        (["-m", "accelerate.commands.launch", "train.py"], "would not be inside the budget"),
        (["-m", "torch.distributed.run", "--no-python", "train.sh"], "--no-python and --run-path do not go"),
        (["--budget", "2GiB,1GiB", "SCRIPT"], "is for 2 ranks, and there is 1"),
    ],
)
def test_mistakes(script: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = words if "--budget" in words else ["--budget", "2GiB", *words]
    assert main(["run", *[str(script) if word == "SCRIPT" else word for word in given]]) == 2
    assert message in capsys.readouterr().err


def test_ranks_exchange_data_larger_than_a_store_takes() -> None:
    store = dist.HashStore()
    exchanges = [RankExchange(Rank(number, 2), store, "result") for number in range(2)]
    noise = os.urandom(6 << 20).hex()
    for number, exchange in enumerate(exchanges):
        exchange.send({"number": number, "noise": noise})
    found = exchanges[0].collect(failed=False)
    assert sorted(found) == [0, 1]
    assert all(data == {"number": number, "noise": noise} for number, data in found.items())


def test_a_rank_that_left_nothing_is_not_waited_for_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    from remint.cli import rank_exchange

    monkeypatch.setattr(rank_exchange, "_PATIENCE_AFTER_FAILURE", 0.2)
    exchange = RankExchange(Rank(0, 3), dist.HashStore(), "result")
    exchange.send({"number": 0})
    assert list(exchange.collect(failed=True)) == [0]


def test_ranks_share_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "free_bytes", lambda device: 1000)
    assert free_memory.automatic_budget("cpu") == 900
    for name, value in {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert free_memory.automatic_budget("cpu") == 450


def test_files_of_ranks() -> None:
    assert path_of_rank("a.b/run.json", Rank(3, 4)) == "a.b/run.3.json"


FIT_SCRIPT = """
import sys
import torch
import torch.distributed as dist
size = int(sys.argv[sys.argv.index("--batch") + 1])
dist.init_process_group("gloo")
rank = dist.get_rank()
if size == 13 and rank == 1:
    raise RuntimeError("thirteen")
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(8)))
)
model(torch.randn(64 * size * (1 + rank), 64)).square().mean().backward()
"""


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [False, True])
def test_the_largest_size_that_fits_on_every_rank(tmp_path: Path, launcher: bool) -> None:
    """A size of 64 fits on rank 0 alone."""
    script = tmp_path / "train.py"
    script.write_text(FIT_SCRIPT)
    fit = ["-m", "remint", "fit", script, "--budget", "5MiB", "--json", tmp_path / "fit.json"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ranks = [] if launcher else ["--nproc", "2"]
    done = run(*torchrun if launcher else [], *fit, *ranks, "--vary", "batch=2,64")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "fit.json").read_text())
    assert [(each["size"], each["fits"]) for each in found["attempts"]] == [(2, True), (64, False)]
    assert "rank 1" in found["attempts"][1]["failure"]
    # Rank 0 speaks for all.
    assert done.stdout.count("the largest that fits is 2") == 1
    if not launcher:
        done = run(*fit, *ranks, "--vary", "batch=13")
        assert done.returncode == 2
        assert "RuntimeError: thirteen" in done.stderr
        assert (
            run("-m", "remint", "fit", script, "--budget", "8MiB", "--vary", "batch=2", "--nproc", "0").returncode == 2
        )
