"""Ranks that fail together: one does not fit, and all raise its BudgetError at once instead of waiting for it."""

import logging
import os
import subprocess
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn

import remint
from remint.runtime.agreement import SmallestBudgets
from remint.runtime.budget import _budget_of_rank
from tests.support.ranks import connect, values

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")


def _collectives():
    mesh_group = dist.new_group([0, 1])

    def ddp():
        model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
        for _ in range(100):
            model(torch.ones(4, 8)).sum().backward()

    def asynchronous():
        work = dist.all_reduce(torch.ones(100), async_op=True)
        work.wait()

    return {
        "all_reduce": lambda: dist.all_reduce(torch.ones(100)),
        "a group that the program holds": lambda: dist.all_reduce(torch.ones(100), group=mesh_group),
        "async": asynchronous,
        "recv": lambda: dist.recv(torch.ones(100), 1),
        "barrier": dist.barrier,
        "Works that the program holds": lambda: dist.all_reduce(torch.ones(100)),
        "DDP": ddp,
    }


def one_rank_fails_alone(rank):
    fits = torch.ones(1)
    if rank == 1:
        with pytest.raises(remint.BudgetError, match=r"^the budget of"), remint.budget("1MiB", group=False):
            torch.ones(1024, 16) @ torch.ones(16, 1024)
        fits.zero_()
    else:
        with remint.budget("1MiB", group=False):
            torch.ones(16, 16) @ torch.ones(16, 16)
    # The ranks agree by a collective of their own: the process group is still there.
    dist.all_reduce(fits, op=dist.ReduceOp.MIN)
    assert fits.item() == 0


def test_a_rank_that_fails_alone_keeps_its_groups(ranks):
    ranks.run(one_rank_fails_alone)


def one_rank_does_not_fit(rank, name, store):
    # gloo would wait longer than the test may take.
    dist.destroy_process_group()
    connect(rank, f"{store} before", timedelta(seconds=300))
    waits = _collectives()[name]
    dist.barrier()

    def multiply():
        torch.ones(1024, 16) @ torch.ones(16, 1024)

    def in_another_budget():
        with remint.budget("500KiB"):
            multiply()

    # One that has ended, and two that are in flight when the rank fails.
    works = [dist.all_reduce(torch.ones(100), async_op=True)]
    works[0].wait()
    if "Works" in name:
        works += [dist.all_reduce(torch.ones(100), async_op=True), dist.isend(torch.ones(100), 1 - rank)]

    def as_pipelines_do():
        try:
            multiply()
        except remint.BudgetError as error:
            raise RuntimeError("failed to run a stage") from error

    acts = {"async": in_another_budget, "recv": as_pipelines_do}
    act = waits if rank == 0 else acts.get(name, multiply)
    with pytest.raises(remint.BudgetError) as failure, remint.budget("1MiB") as run:
        act()
    # The product has 4 MiB.
    error = str(failure.value)
    assert error.startswith("rank 1 needs "), error
    assert error.splitlines()[0].endswith(" MiB more for aten::mm."), error
    assert failure.value.min_budget_bytes > 4 << 20
    assert failure.value.op == "aten::mm"
    assert (run.status, run.failure) == ("oom", error)
    assert (failure.value.__cause__ is None) == (rank == 1 and name != "recv")
    assert len(works) == (3 if "Works" in name else 1)
    # The group can be destroyed as always, and the program can connect again.
    dist.destroy_process_group()
    connect(rank, store)
    total = torch.ones(3)
    dist.all_reduce(total)
    assert total.tolist() == [2, 2, 2]


CASES = [
    "all_reduce",
    "Works that the program holds",
    "a group that the program holds",
    "async",
    "recv",
    "barrier",
    "DDP",
]


@pytest.mark.parametrize("name", CASES)
def test_one_rank_does_not_fit(ranks, name, tmp_path):
    ranks.run(one_rank_does_not_fit, name=name, store=str(tmp_path / "store"))


def other_errors_stay(rank):
    with pytest.raises(RuntimeError, match="size of tensor") as failure, remint.budget("1MiB"):
        torch.ones(3) + torch.ones(4)
    assert not isinstance(failure.value, remint.BudgetError)
    # An error that the program handles inside is nobody else's.
    with remint.budget("1MiB"), pytest.raises(remint.BudgetError):
        torch.ones(1 << 20).mul_(2)
    total = torch.ones(3)
    dist.all_reduce(total)
    assert total.tolist() == [2, 2, 2]


def test_other_errors_stay(ranks):
    ranks.run(other_errors_stay)


def a_budget_for_each(rank):
    for budget in (["1MiB", "2MiB"], lambda number: (number + 1) << 20, [{"cpu": "1MiB"}, {"cpu": "2MiB"}]):
        with remint.budget(budget) as run:
            values(rank)[0] + 1
        assert run.budget_bytes == (rank + 1) << 20
    with pytest.raises(ValueError, match="3 budgets were given"), remint.budget(["1MiB", "1MiB", "1MiB"]):
        pass


def test_a_budget_for_each_rank(ranks):
    ranks.run(a_budget_for_each)


def test_a_list_without_ranks():
    assert _budget_of_rank(["1MiB"]) == "1MiB"
    with pytest.raises(ValueError, match="2 budgets were given"):
        _budget_of_rank(["1MiB", "2MiB"])
    with pytest.raises(ValueError, match="0 bytes"):
        remint.budget(["1MiB", 0])


def largest_smallest_budget(rank):
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("remint")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    needs = None
    try:
        with remint.budget("8MiB") as run:
            weight = torch.ones(64, 64 * (1 + 3 * rank), requires_grad=True)
            optimizer = torch.optim.SGD([weight], 0.1)
            for _ in range(3):
                weight.sum().backward()
                optimizer.step()
                needs = needs or run.min_budget_bytes
                dist.barrier()
    finally:
        logger.removeHandler(handler)
    both = torch.tensor([0, 0])
    both[rank] = needs
    dist.all_reduce(both)
    assert both[1] > both[0] > 0
    assert run.ranks_min_budget_bytes == both.max()
    assert "ranks         need budgets of at least" in str(run)
    assert [("rank 1 needs most" in line) for line in said] == ([True] if rank == 0 else [])


def test_ranks_agree_on_the_largest_smallest_budget(ranks):
    ranks.run(largest_smallest_budget)


def test_without_ranks_no_store_is_used(monkeypatch):
    monkeypatch.setattr(SmallestBudgets, "__init__", lambda *_: pytest.fail("there are no ranks"))
    with remint.budget("1MiB"):
        torch.ones(100).mul_(2)


SCRIPT = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
try:
    x = torch.ones(64, 1 << 14 if dist.get_rank() == 1 else 64)
    y = torch.ones(64, 64) @ x
    dist.all_reduce(torch.ones(3))
finally:
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_script_that_destroys_its_group(tmp_path):
    """Its connections are gone before the error is known to remint, and torchrun's store is still there."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "remint", "run", "--nproc", "2", "--budget", "5MiB", str(script)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode != 0
    assert done.stderr.count("BudgetError: rank 1 needs ") == 2, done.stderr
    assert done.stderr.count("The script failed: its budget is too small, see above.") == 2, done.stderr
    assert done.stderr.count("did not fit") >= 2
