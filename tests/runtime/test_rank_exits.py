"""A rank ends while a thread of gloo still drops what it kept for its last collective."""

import os
import subprocess
import sys

import pytest
import torch.distributed as dist

pytestmark = [
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo"),
    pytest.mark.skipif(sys.platform != "linux", reason="the threads of gloo are found in /proc"),
    pytest.mark.slow,
]

# A collective keeps the Python objects of the thread that began it. On rank 1, one of them takes a second to go, and
# the program ends in the middle of that. Without the wait at the end, the thread of gloo then asks for the GIL of an
# interpreter that is ending, and the process aborts.
SCRIPT = """
import os, pathlib, sys, time
import torch, torch.distributed as dist
import remint

rank, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
dropped, dropping, done = folder / "dropped", folder / "dropping", folder / "done"

def wait_for(path):
    end = time.monotonic() + 60
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.01)

class TakesLong:
    def __del__(self):
        dropping.touch()
        end = time.monotonic() + 1
        while time.monotonic() < end:
            pass
        done.touch()

if rank == 0:
    wait_for(dropped)
    dist.all_reduce(torch.ones(100))
    wait_for(done)
    os._exit(0)
with remint.budget("1MiB"):
    torch.ones(100)
torch._C._stash_obj_in_tls("takes long", TakesLong())
dist.all_reduce(torch.ones(100), async_op=True)
torch._C._remove_obj_from_tls("takes long")
dropped.touch()
wait_for(dropping)
"""


def test_a_rank_ends_after_the_threads_of_gloo_came_to_rest(tmp_path):
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    commands = [[sys.executable, "-c", SCRIPT, str(rank), str(tmp_path)] for rank in range(2)]
    ranks = [subprocess.Popen(c, env=environment, stderr=subprocess.PIPE, text=True) for c in commands]
    try:
        # Rank 1 first: rank 0 waits for it.
        errors = [ranks[rank].communicate(timeout=150)[1] for rank in (1, 0)]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    assert (tmp_path / "done").exists()
