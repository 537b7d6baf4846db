"""One attempt of `remint fit`: the script runs with a size in processes of its own, here or on all ranks."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from remint.results.largest_fit import Attempt
from remint.results.ranks import own_seconds

if TYPE_CHECKING:
    from remint.runtime.rank import Rank


class AttemptsHere:
    """Runs `remint run` once per size, which starts the ranks if there are several."""

    def __init__(self, options: argparse.Namespace, name: str) -> None:
        self._options = options
        self._name = name

    def __call__(self, size: int) -> Attempt:
        """Try a size."""
        count = self._options.nproc
        names = ["run.json"] if count is None else [f"run.{number}.json" for number in range(count)]
        launch = [] if count is None else ["--nproc", str(count)]
        return _attempt(size, self._outcomes(size, launch, names, dict(os.environ)))

    def _outcomes(
        self, size: int, launch: Sequence[str], names: Sequence[str], environment: dict[str, str]
    ) -> list[dict[str, Any]]:
        """Run the script with a size; return what came of it, for each file that it should have left."""
        options, name = self._options, self._name
        place = f"{{{name}}}"
        arguments = [argument.replace(place, str(size)) for argument in options.args]
        if arguments == options.args:
            arguments += [f"--{name}", str(size)]
        with tempfile.TemporaryDirectory() as folder:
            # A process of its own: what one size leaves behind does not count for the next.
            command = [sys.executable, "-m", "remint", "run", *launch, "--budget", options.budget]
            command += ["--policy", options.policy, "--max-slowdown", str(options.max_slowdown)]
            command += ["--json", str(Path(folder) / "run.json"), options.script, *arguments]
            code, output = _run(command, f"{name} {size}", environment)
            paths = [Path(folder) / each for each in names]
            runs = [json.loads(path.read_text()) if path.exists() else None for path in paths]
        said = f"{options.script} failed with {name} {size}, exit code {code}: {_reason(output)}"
        return [_outcome(run, said if code != 0 or run is None else None) for run in runs]


class AttemptsOfRanks(AttemptsHere):
    """The same on each rank of a launcher: each runs its part of the script, and all look at what came of all."""

    def __init__(self, options: argparse.Namespace, name: str, rank: Rank) -> None:
        from remint.cli.rank_exchange import launchers_store

        super().__init__(options, name)
        self._rank = rank
        self._store = launchers_store("remint fit looks for a size that fits on all ranks")

    def __call__(self, size: int) -> Attempt:
        """Try a size on all ranks."""
        from remint.cli.rank_exchange import RankExchange, path_of_rank, trial_environment

        exchange = RankExchange(self._rank, self._store, f"fit/{size}")
        name = path_of_rank("run.json", self._rank)
        (outcome,) = self._outcomes(size, [], [name], trial_environment(exchange))
        exchange.send(outcome)
        found = exchange.collect(failed=False)
        return _attempt(size, [found[number] for number in sorted(found)])


def _outcome(run: dict[str, Any] | None, error: str | None) -> dict[str, Any]:
    """Return what matters of a run: why it did not fit, or why it failed, or its figures."""
    if run is not None and run.get("status") == "oom":
        return {"failure": run["failure"]}
    if run is None or error is not None:
        return {"error": error}
    return {
        "seconds": own_seconds(run) + run.get("collective_seconds", 0.0),
        "peak_bytes": run["peak_bytes"],
        "slowdown": run["slowdown"],
        "num_rematerializations": run["num_rematerializations"],
    }


def _attempt(size: int, outcomes: Sequence[dict[str, Any]]) -> Attempt:
    """Return what came of a size on all ranks: it fits if it fits on each."""
    # Ranks that waited for one that did not fit may have failed in their own way.
    for outcome in outcomes:
        if "failure" in outcome:
            return Attempt(size=size, fits=False, failure=outcome["failure"])
    for outcome in outcomes:
        if "error" in outcome:
            raise ValueError(outcome["error"])
    return Attempt(
        size=size,
        fits=True,
        seconds=max(outcome["seconds"] for outcome in outcomes),
        peak_bytes=max(outcome["peak_bytes"] for outcome in outcomes),
        slowdown=max(outcome["slowdown"] for outcome in outcomes),
        num_rematerializations=sum(outcome["num_rematerializations"] for outcome in outcomes),
    )


def _reason(output: str) -> str:
    """Return the line that says most: the script's own error, or what remint said about its arguments."""
    said = (output.strip() or "nothing").splitlines()
    errors = [line for line in said if re.match(r"(\[rank\d+\]: *)?[\w.]*(Error|Exception|error)\b", line)]
    # torchrun adds an error of its own to those of the ranks.
    errors = [line for line in errors if "ChildFailedError" not in line] or errors
    return (errors or [line for line in said if line.startswith("remint: ")] or said)[-1]


def _run(command: list[str], what: str, environment: dict[str, str]) -> tuple[int, str]:
    """Run a command; return its exit code, and what it said on stderr, or else on stdout.

    What it says about slow steps is passed on at once.
    """
    said: list[str] = []

    def listen(stream: IO[str]) -> None:
        for line in stream:
            said.append(line)
            slow = re.search(r"remint: ((rank \d+: )?(this )?step (\d+|is).*?slower.*?\.)( |$)", line)
            if slow:
                print(f"{what}: {slow[1]}", file=sys.stderr, flush=True)

    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True, env=environment) as process,
    ):
        assert process.stderr is not None
        listener = threading.Thread(target=listen, args=(process.stderr,))
        listener.start()
        try:
            process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            listener.join()
        output.seek(0)
        return process.returncode, "".join(said) if "".join(said).strip() else output.read()
