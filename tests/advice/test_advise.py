"""Advice: the budgets that it names are trained in, and its figures add up."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import remint  # noqa: E402
from remint.results.advice import Advice, Choice  # noqa: E402
from remint.units import parse_budget  # noqa: E402

SCRIPT = """
import sys
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
x = torch.randn(1024, 64)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
"""


class Program:
    """A small network with its optimizer, made anew each time."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        parts = [part for _ in range(6) for part in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
        self.model = torch.nn.Sequential(*parts)
        self.x = torch.randn(1024, 64)
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.x).square().mean().backward()
        self.optimizer.step()


@pytest.fixture(scope="module")
def advice() -> Advice:
    # Without plans: eight steps are too few for a budget to have its own.
    return remint.advise(Program().step, fits="60%", plan=False)


@pytest.mark.smoke
def test_the_budgets_it_names_are_trained_in(advice: Advice) -> None:
    named = [advice.recommended, advice.least, advice.asked, *advice.choices]
    assert advice.recommended is not None
    assert advice.least is not None
    for choice in named:
        program = Program()
        # From the first step on, which makes the state of the optimizer.
        with remint.budget(choice.budget_bytes) as run:
            for _ in range(8):
                program.step()
        assert run.status == "ok"
        assert run.peak_bytes <= choice.budget_bytes
        # What is called learned is learned: a way was found, with addresses for all blocks.
        if choice.learned < choice.greedy:
            assert run.learning.learned.num_steps + run.learning.planned.num_steps > 0


def test_the_peak_is_what_a_step_takes(advice: Advice) -> None:
    program = Program()
    with remint.budget("64MiB", learn=False) as run:
        for _ in range(3):
            program.step()
    assert abs(advice.peak_bytes - run.peak_bytes) <= 0.02 * run.peak_bytes


def test_the_holders_add_up_to_the_peak(advice: Advice) -> None:
    assert abs(sum(holder.nbytes for holder in advice.holders) - advice.peak_bytes) <= 0.01 * advice.peak_bytes
    kinds = {holder.kind: holder for holder in advice.holders}
    weights = sum(weight.nbytes for weight in Program().model.parameters())
    assert 2 * weights <= kinds["optimizer state"].nbytes <= 2.1 * weights
    assert any(holder.where == "Sequential.*" for holder in advice.holders if holder.kind == "activations")
    assert {holder.kind for holder in advice.outside} >= {"weights"}


def test_smaller_budgets_cost_more_and_none_is_below_the_bound(advice: Advice) -> None:
    assert advice.least.budget_bytes >= advice.min_budget_bytes
    assert all(choice.budget_bytes >= advice.least.budget_bytes * 0.98 for choice in advice.choices)
    largest, smallest = advice.choices[0], advice.least
    assert smallest.learned > largest.learned


def test_the_answer_fits_in_a_terminal(advice: Advice) -> None:
    lines = str(advice).splitlines()
    assert len(lines) <= 40
    tables = [line for line in lines if re.match(r"\s{2,}", line)]
    assert max(map(len, tables)) <= 80
    assert "with remint.budget(" in str(advice)


def test_a_budget_below_the_bound_does_not_fit(advice: Advice) -> None:
    too_small = remint.advise(Program().step, fits=advice.min_budget_bytes // 2, steps=1, try_it=False, plan=False)
    assert too_small.fits is False
    assert "does not fit" in too_small.verdict()
    assert remint.advise(Program().step, fits="1GiB", steps=1, try_it=False, plan=False).fits is True


def test_a_page_has_the_curve(advice: Advice, tmp_path: Path) -> None:
    advice.report(tmp_path / "advice.html")
    found = re.search(r'id="data">(.*?)</script>', (tmp_path / "advice.html").read_text(), re.DOTALL)
    data = json.loads(found[1])["advice"][0]
    assert data["verdict"] == advice.verdict()
    assert len(data["chart"]["series"][0]["points"]) >= len(advice.choices)


def test_a_tier_makes_smaller_budgets_possible(advice: Advice) -> None:
    tier = remint.Offload(bytes="64MiB", bandwidth="1TB")
    asked = advice.least.budget_bytes * 9 // 10
    told = remint.advise(Program().step, fits=asked, steps=2, try_it=False, plan=False, offload=tier)
    assert told.bandwidth == 1e12
    assert told.fits
    assert told.asked.uses_tier
    assert told.least.budget_bytes < advice.least.budget_bytes
    assert told.min_budget_bytes <= told.least.budget_bytes
    assert 'offload="64MiB"' in told.how_to(told.asked)
    assert max(map(len, str(told).splitlines())) <= 80
    for choice in (told.asked, told.least):
        program = Program()
        with remint.budget(choice.budget_bytes, offload=tier) as run:
            for _ in range(4):
                program.step()
        assert run.num_fetches > 0
        assert run.peak_bytes <= choice.budget_bytes


def test_it_recommends_the_smallest_that_is_quick_enough() -> None:
    from remint.advice.answers import _recommended

    choices = [Choice(budget_bytes=100 - k, greedy=1 + k / 10, learned=1 + k / 20) for k in range(5)]
    assert _recommended(choices, 1.1).budget_bytes == 98
    # Where all are slow, the quickest is the measure: 1.2 is less than 1.1 times 1.15.
    assert _recommended(choices[3:], 1.1).budget_bytes == 96
    assert _recommended([], 1.1) is None


@pytest.mark.parametrize("arguments", [{"accept": 0.5}, {"steps": 0}, {"fits": "much"}])
def test_mistakes_are_named_before_anything_runs(arguments: dict[str, object]) -> None:
    def step() -> None:
        raise AssertionError("ran")

    with pytest.raises(ValueError, match=r"accept|steps|budget"):
        remint.advise(step, **arguments)


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "remint", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_script_trains_in_the_budget_that_the_command_names(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    answer = command("advise", "--json", "-", "--no-plan", tmp_path / "train.py", "50")
    assert answer.returncode == 0, answer.stderr
    data = json.loads(answer.stdout)
    assert data["trial"]["slowdown"] is not None
    budget = data["recommended"]["budget_bytes"]
    assert f"remint run --budget {data['use'].split()[3]} " in data["use"]
    assert parse_budget(data["use"].split()[3]) >= budget
    done = command("run", "--budget", budget, tmp_path / "train.py", "6")
    plain = subprocess.run([sys.executable, tmp_path / "train.py", "6"], capture_output=True, text=True, check=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout


@pytest.mark.slow
def test_a_script_that_is_too_short_gets_a_reason(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = command("advise", tmp_path / "train.py", "2")
    assert done.returncode == 1
    assert "Its optimizer stepped 2 times" in done.stderr
    failed = command("advise", tmp_path / "train.py", "two")
    assert failed.returncode == 1
    assert "The script failed: ValueError" in failed.stderr
