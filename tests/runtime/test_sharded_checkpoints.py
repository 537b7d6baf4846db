"""FSDP2 saves a checkpoint of all ranks inside a budget, and goes on from it with the bits of the plain run."""

import hashlib
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import remint

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")


def _made():
    from tests.runtime.test_parallel_training import fully_sharded

    torch.manual_seed(0)
    model = fully_sharded()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def _state(model, optimizer):
    from torch.distributed.checkpoint.state_dict import get_state_dict

    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def _steps(rank, model, optimizer, numbers):
    for number in numbers:
        x = torch.randn(16, 48, 32, generator=torch.Generator().manual_seed(10 * number + rank))
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        yield loss.detach().clone()


def _save_load_continue(rank, folder):
    """Train two steps, save, and go on: once as if nothing had happened, and once in a new model."""
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import set_state_dict

    model, optimizer = _made()
    found = list(_steps(rank, model, optimizer, range(2)))
    checkpoint.save(_state(model, optimizer), checkpoint_id=folder)
    found += _steps(rank, model, optimizer, range(2, 4))
    model, optimizer = _made()
    state = _state(model, optimizer)
    checkpoint.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    continued = list(_steps(rank, model, optimizer, range(2, 4)))
    assert all(torch.equal(a, b) for a, b in zip(found[2:], continued, strict=True))
    return [*found, *continued, *(p.to_local().detach().clone() for p in model.parameters())]


def _digest(folder):
    """What the ranks saved, without the names of temporary files."""
    files = sorted(path for path in Path(folder).iterdir() if path.suffix == ".distcp")
    assert len(files) == 2
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]


def save_load_continue(rank, folder):
    expected = _save_load_continue(rank, f"{folder}/plain")
    with remint.budget("1GiB") as roomy:
        _save_load_continue(rank, f"{folder}/roomy")
    budget = max(int(roomy.peak_bytes * 0.6), int(roomy.min_budget_bytes * 1.1))
    with remint.budget(budget, max_slowdown=None) as run:
        found = _save_load_continue(rank, f"{folder}/tight")
    for k, (a, b) in enumerate(zip(expected, found, strict=True)):
        assert torch.equal(a, b), k
    assert run.num_rematerializations > 0
    assert run.peak_bytes <= run.budget_bytes
    dist.barrier()
    assert _digest(f"{folder}/plain") == _digest(f"{folder}/tight")
    print("budget", budget / roomy.peak_bytes, "again", run.num_rematerializations)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)


def test_checkpoints_of_fsdp2(ranks, tmp_path):
    ranks.run(save_load_continue, folder=str(tmp_path / "checkpoints"))
