"""What `remint run` leaves: lines on stderr, the JSON file, the page. On several ranks, rank 0 shows them together."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from remint.cli.output import write_json
from remint.cli.script import Ended, misplaced_options
from remint.report import write_html
from remint.results.ranks import ranks_table
from remint.results.run import Run
from remint.results.verdict import verdict
from remint.units import format_bytes

if TYPE_CHECKING:
    from remint.runtime.rank import Rank


class RunResult(NamedTuple):
    """How a script ended in a budget, and its figures."""

    ended: Ended
    summary: dict[str, Any]
    engine: str
    """The engine's figures, as text."""
    run: Run

    def data(self) -> dict[str, Any]:
        """Return it as plain data, for a file."""
        return self.run.to_json() | self.summary | {"exit_code": self.ended.code}


def show(result: RunResult, options: argparse.Namespace, *, name: str = "") -> None:
    """Print what came of the run; `name` says of which rank."""
    label = f"remint: {name}: " if name else "remint: "
    fitted = verdict(result.summary, wanted_bytes=result.run.wanted_bytes)
    if result.ended.code:
        fitted = fitted.replace("Fitted", "Until then it fitted", 1)
        if not result.summary["peak_bytes"]:
            fitted = ""  # it ended before its first tensor
    for line in (str(result.ended), fitted, misplaced_options(options) if result.ended.code == 2 else ""):
        if line:
            print(f"{label}{line}", file=sys.stderr)
    if options.verbose:
        print(result.engine, file=sys.stderr)


def write(result: RunResult, options: argparse.Namespace, stdout: TextIO | None) -> None:
    """Write the files of a run on one rank."""
    if options.json is not None:
        write_json(options.json, result.data(), stdout=stdout)
    if options.report is not None:
        title = f"{Path(options.script).name} in {format_bytes(result.run.budget_bytes)}"
        write_html(options.report, [result.run], title=title)
        _say_where(options.report)


def write_of_ranks(result: RunResult, options: argparse.Namespace, rank: Rank, stdout: TextIO | None) -> None:
    """Write the file of this rank. Rank 0 waits for the others and shows all: a table, and the page."""
    from remint.cli.rank_exchange import RankExchange, path_of_rank
    from remint.runtime.rank import store_of_ranks

    data = result.data()
    if options.json not in (None, "-"):
        write_json(path_of_rank(options.json, rank), data)
    store = store_of_ranks()
    if store is None:
        # Nothing connects the ranks: each has its own line and files.
        if options.report is not None:
            result.run.report(path_of_rank(options.report, rank))
        return
    exchange = RankExchange(rank, store, "result")
    # Long columns are for the page only.
    exchange.send(data if options.report is not None else result.summary | {"exit_code": result.ended.code})
    if rank.number > 0:
        return
    ranks = exchange.collect(failed=result.ended.code != 0)
    for line in ranks_table(ranks).splitlines():
        print(f"remint: {line}", file=sys.stderr)
    missing = [number for number in range(rank.count) if number not in ranks]
    if missing:
        print(f"remint: rank {', '.join(map(str, missing))} left no figures.", file=sys.stderr)
    if options.json == "-":
        write_json("-", {"ranks": [{"rank": number, **ranks[number]} for number in sorted(ranks)]}, stdout=stdout)
    if options.report is not None:
        runs = {f"rank {number}": Run.from_json(ranks[number]) for number in sorted(ranks)}
        write_html(options.report, runs, title=f"{Path(options.script).name} on {rank.count} ranks")
        _say_where(options.report)


def _say_where(report: str) -> None:
    print(f"remint: The report is {Path(report).resolve()}", file=sys.stderr)
