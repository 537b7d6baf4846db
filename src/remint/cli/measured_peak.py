"""What a script takes without a budget, for budgets that are a part of it: its beginning runs in another process."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remint.runtime.rank import Rank


def measured_peak(options: argparse.Namespace, rank: Rank | None) -> int:
    """Return the most bytes that the script takes without a budget, up to the end of its second step, on any rank.

    The second step has the state of the optimizer, and the gradients of the first one.
    """
    if rank is None:
        return _peak_here(options, dict(os.environ), "run.json")
    from remint.cli.rank_exchange import RankExchange, launchers_store, path_of_rank, trial_environment

    store = launchers_store(f"the budget {options.budget} is a part of what the ranks take, give bytes")
    exchange = RankExchange(rank, store, "peak")
    environment = trial_environment(exchange)
    failure = ""
    try:
        exchange.send({"peak_bytes": _peak_here(options, environment, path_of_rank("run.json", rank))})
    except ValueError as error:
        failure = str(error)
        exchange.send({"failure": failure})
    peaks = exchange.collect(failed=False)
    failures = [failure, *(each["failure"] for each in peaks.values() if "failure" in each)]
    if any(failures):
        raise ValueError(next(text for text in failures if text))
    return max(int(each["peak_bytes"]) for each in peaks.values())


def _peak_here(options: argparse.Namespace, environment: dict[str, str], name: str) -> int:
    everything = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with tempfile.TemporaryDirectory() as folder:
        # A process of its own: what it leaves behind does not count in the budget.
        command = [sys.executable, "-m", "remint", "run", "--budget", str(everything), "--stop-after", "2"]
        command += ["--json", str(Path(folder) / "run.json")]
        command += [*(["-m"] if options.module else []), options.script, *options.args]
        done = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False, env=environment
        )
        figures = Path(folder) / name
        if done.returncode != 0 or not figures.exists():
            said = [line for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
            raise ValueError(
                f"the peak of {options.script} could not be measured, it failed with exit code {done.returncode}:\n"
                + "\n".join(said[-6:])
            )
        return int(json.loads(figures.read_text())["peak_bytes"])
