"""The clock of time limits: CPU time of the planning thread and of the solvers it waited for.

A limit in CPU time gives the same plan on a busy machine, which a limit in seconds does not.
"""

from __future__ import annotations

import threading
import time

_solvers = threading.local()


def cpu_seconds() -> float:
    """Seconds that this thread and its solvers have computed. Only differences mean anything."""
    spent: float = getattr(_solvers, "seconds", 0.0)
    return time.thread_time() + spent


def charge(seconds: float) -> None:
    """Count seconds that a solver in another process has computed for this thread."""
    _solvers.seconds = getattr(_solvers, "seconds", 0.0) + seconds
