"""The end of a rank: threads of gloo finish what they are at before the interpreter does.

A thread of gloo that has run a collective drops what it kept for it. Part of that are Python objects (`backward` leaves
one, and tensors are), so the thread waits for the GIL. If the interpreter ends meanwhile, CPython before 3.14 ends such
threads where they stand, and because there are C++ frames above, that ends the process:
"terminate called without an active exception". It happens without remint, too. `destroy_process_group()` does not help
where the model still holds the group, as DDP does.
"""

from __future__ import annotations

import atexit
import functools
import time
from pathlib import Path

_THREADS = Path("/proc/self/task")
_GLOO = "pt_gloo_runloop"
# One that waits for the GIL looks every 5 ms.
_INTERVAL = 0.02
_PATIENCE = 10.0


@functools.cache
def wait_at_exit() -> None:
    """Let this process wait, when it ends, until no thread of gloo needs the GIL."""
    atexit.register(wait_for_gloo)


def wait_for_gloo() -> None:
    """Wait until all threads of gloo rest: they wait for the next collective, or for other ranks."""
    end = time.monotonic() + _PATIENCE
    before = None
    while (now := _gloo_threads()) and time.monotonic() < end:
        # One that did not run while the GIL was free does not wait for it.
        if now == before and all(state == "S" for state, _ in now.values()):
            return
        before = now
        time.sleep(_INTERVAL)


def _gloo_threads() -> dict[str, tuple[str, int]]:
    """Return the state of each thread of gloo, and how often it stopped running; nothing where there is no /proc."""
    found = {}
    for thread in _THREADS.glob("*"):
        try:
            if (thread / "comm").read_text().strip() != _GLOO:
                continue
            lines = (thread / "status").read_text().splitlines()
        except OSError:
            continue
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        stops = int(fields["voluntary_ctxt_switches"]) + int(fields["nonvoluntary_ctxt_switches"])
        found[thread.name] = (fields["State"][0], stops)
    return found
