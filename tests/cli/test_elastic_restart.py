"""A rank is killed, torchrun starts all ranks again, and they go on from their checkpoint with the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch.distributed as dist

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("needs gloo", allow_module_level=True)

SCRIPT = """
import hashlib, os, signal, sys
from pathlib import Path
import torch
import torch.distributed as dist

folder, dies = Path(sys.argv[1]), "dies" in sys.argv
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(8)))
)
optimizer = torch.optim.Adam(model.parameters(), 0.01)
saved = folder / "state.pt"
begin = 0
if saved.exists():
    state = torch.load(saved)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    begin = state["step"]
for step in range(begin, 6):
    x = torch.randn(512, 64, generator=torch.Generator().manual_seed(10 * step + rank))
    optimizer.zero_grad()
    loss = model(x).square().mean()
    if dies and step == 3 and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    loss.backward()
    optimizer.step()
    if rank == 0 and step % 2 == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, folder / "new")
        os.replace(folder / "new", saved)
    dist.barrier()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
(folder / f"rank{rank}.txt").write_text(f"{begin} {digest}")
"""


def _train(folder: Path, *words: str, budget: str | None = None) -> tuple[set[str], str]:
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    # In torchrun's own store, gloo finds the addresses of the ranks that have died.
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    worker = ["-m", "remint", "run", "--budget", budget] if budget else []
    command = [*launcher, "--max-restarts", "1", *worker, str(script), str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    return {(folder / f"rank{rank}.txt").read_text() for rank in range(2)}, done.stderr


@pytest.mark.slow
def test_ranks_that_are_started_again_go_on_with_the_same_bits(tmp_path: Path) -> None:
    (plain,), _ = _train(tmp_path / "plain")
    (found,), said = _train(tmp_path / "killed", "dies", budget="1500KiB")
    (begin, bits), (begin_again, bits_again) = plain.split(), found.split()
    assert begin == "0"
    assert begin_again == "3", "it did not go on from its checkpoint"
    assert bits_again == bits
    # Both ranks say what came of their second life, and recomputed something in it.
    for rank in range(2):
        assert sum(f"remint: rank {rank}: Fitted into" in line and "ran again" in line for line in said.splitlines())
