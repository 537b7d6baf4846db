"""`remint run` and `remint record`: an unmodified script, from before its first tensor to its end."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from remint.cli.launch import launch, launches_ranks
from remint.cli.measured_peak import measured_peak
from remint.cli.output import (
    EXAMPLES,
    add_json,
    add_max_slowdown,
    add_policy,
    check_budgets,
    check_outputs,
    reserve_stdout,
    write_json,
)
from remint.cli.run_results import RunResult, show, write, write_of_ranks
from remint.cli.script import add_script, check_script, run_script
from remint.cli.termination import outlives_sigterm
from remint.units import budget_text, format_bytes, format_seconds, parse_budget

if TYPE_CHECKING:
    from remint.runtime import LiveRun
    from remint.runtime.rank import Rank

_RUN = """\
examples:
  remint run --budget 2GiB train.py --epochs 3
  remint run --budget 2GiB --report run.html -v train.py
  remint run --budget 80% train.py                    of what a step takes
  remint run --budget 1GiB --offload 8GiB train.py    and a file of 8 GiB
  remint run --budget 500MiB --overflow spill --json run.json -m package.train
  remint run --nproc 2 --budget 2GiB train.py         on two ranks
"""
_RECORD = """\
examples:
  remint record -o step.trace train.py --epochs 1
  remint simulate step.trace --budget 70%,50%
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands, which import torch only when one runs."""
    run = commands.add_parser(
        "run",
        help="run a script inside a memory budget",
        description="Run an unmodified script with all its tensors in an arena of exactly the budget: those of the "
        "accelerator, or of the CPU if there is none. Prints a summary to stderr at the end, also when the script "
        "fails or is stopped, and exits with its exit code.",
        epilog=_RUN,
        **EXAMPLES,
    )
    run.add_argument(
        "--budget",
        required=True,
        help='bytes, such as "2GiB"; "60%%": of the peak, for which the beginning of the script is run once before, '
        'up to its second step; "auto": nine tenths of the free memory. Each rank has this budget; "4GiB,2GiB" is one '
        "for each",
    )
    run.add_argument(
        "--nproc",
        type=int,
        metavar="N",
        help="run the script on N ranks, which torchrun starts. Under torchrun, run -m remint run … on each rank",
    )
    run.add_argument("--stop-after", type=int, metavar="STEPS", help="stop the script after so many steps")
    add_policy(run)
    run.add_argument(
        "--overflow", choices=("raise", "spill"), default="raise", help="what happens when it does not fit"
    )
    run.add_argument(
        "--offload",
        metavar="WHERE",
        help="a second tier of memory for what is slower to recompute than to fetch, or cannot be recomputed: bytes, "
        'such as "16GiB", "disk", or a folder for the file',
    )
    add_max_slowdown(run, "fail when a step becomes slower than this")
    add_json(run, "the run")
    run.add_argument("--report", metavar="PATH", help="write a page about the run (.html)")
    run.add_argument("--source-lines", action="store_true", help="note which lines and modules are recomputed most")
    run.add_argument("-v", "--verbose", action="store_true", help="print the engine's figures, too")
    add_script(run)
    run.set_defaults(command=run_command)
    record = commands.add_parser(
        "record",
        help="record a script's op stream as a trace",
        description="Run an unmodified script without a budget and write what it asked for as a trace: ops with "
        "measured costs, storages, the memory that kernels ask for, and where each tensor dies. Prints a summary to "
        "stderr at the end, also when the script fails, and exits with the script's exit code.",
        epilog=_RECORD,
        **EXAMPLES,
    )
    record.add_argument("-o", "--output", required=True, metavar="FILE", help="the trace (.gz compresses)")
    record.add_argument(
        "--costs",
        choices=("median", "measured"),
        default="median",
        help="the median over ops of the same operator, sizes and types, or each as it was (default: median)",
    )
    record.add_argument("--source-lines", action="store_true", help="note the line that each op came from")
    add_json(record, "what was recorded, in short,")
    add_script(record)
    record.set_defaults(command=record_command)


def run_command(options: argparse.Namespace) -> int:
    """Run `options.script` in a budget; return its exit code."""
    launched = launches_ranks(options)
    if not launched or options.nproc is not None:
        check_script(options)
    check_budgets(options.budget)
    check_outputs(options.json, options.report)
    if options.stop_after is not None and options.stop_after < 1:
        raise ValueError(f"--stop-after is 1 step or more, not {options.stop_after}")
    if launched:
        return launch(options)
    from remint.runtime.rank import this_rank

    rank = this_rank()
    budget_text = _budget_here(options, rank)
    stdout = reserve_stdout() if options.json == "-" else None
    if rank is None:
        result = _run_here(options, budget_text, rank)
        show(result, options)
        write(result, options, stdout)
        return result.ended.code
    # When a rank fails, the launcher ends the others by SIGTERM, and they still say what came of them.
    with outlives_sigterm():
        result = _run_here(options, budget_text, rank)
        show(result, options, name=str(rank))
        write_of_ranks(result, options, rank, stdout)
    return result.ended.code


def _budget_here(options: argparse.Namespace, rank: Rank | None) -> str:
    """Return the budget of this rank, as bytes or `auto`."""
    parts = options.budget.split(",")
    count = 1 if rank is None else rank.count
    if len(parts) > 1 and len(parts) != count:
        are = "is 1" if count == 1 else f"are {count}"
        raise ValueError(f"--budget {options.budget} is for {len(parts)} ranks, and there {are}")
    text: str = parts[rank.number] if rank is not None and len(parts) > 1 else parts[0]
    if not text.endswith("%"):
        return text
    parse_budget(text, peak_bytes=0)
    peak = measured_peak(options, rank)
    nbytes = parse_budget(text, peak_bytes=peak)
    if rank is None or rank.number == 0:
        who = "It takes" if rank is None else "The rank that needs most takes"
        print(
            f"remint: {who} {format_bytes(peak)} without a budget; {text} of that are {format_bytes(nbytes)}.",
            file=sys.stderr,
        )
    return str(nbytes)


def _run_here(options: argparse.Namespace, budget_text: str, rank: Rank | None) -> RunResult:
    from remint.advice.script_steps import script_steps
    from remint.runtime.agreement import fail_together
    from remint.runtime.budget import budget

    with_budget = budget(
        budget_text,
        policy=options.policy,
        overflow=options.overflow,
        offload=options.offload,
        max_slowdown=options.max_slowdown,
        timeline=bool(options.report or options.json),
        blocks=bool(options.report),
        source_lines=options.source_lines,
    )
    steps = _Steps(options.stop_after, rank)
    with script_steps(steps.ended), with_budget as run:
        steps.run = run
        # The script's error does not leave the budget as an error: it is printed before.
        ended = run_script(options, explain=lambda error: fail_together(error, run.budget_bytes, None))
        run._failed(ended.error)
        return RunResult(ended, run.summary(), str(run), run.finished())


class _Steps:
    """Counts the steps of the script, stops it after enough of them, and says so when they are slow."""

    SLOW = 3.0

    def __init__(self, stop_after: int | None, rank: Rank | None = None) -> None:
        self._who = "" if rank is None else f"{rank}: "
        self.run: LiveRun | None = None
        self._stop_after = stop_after
        self._number = 0
        self._next_line = 1
        self._before = (0.0, 0.0)

    def ended(self) -> bool:
        """A step ended; return whether it was the last one."""
        self._number += 1
        if self.run is not None:
            now = (self.run.computed_seconds, self.run.rematerialized_seconds)
            computed, again = now[0] - self._before[0], now[1] - self._before[1]
            self._before = now
            # Seldom, and less so the longer it lasts.
            if computed and 1 + again / computed > self.SLOW and self._number >= self._next_line:
                self._next_line = 2 * self._number
                enough = self.run.budget_for(self.SLOW)
                would_do = "" if enough is None else f"; about {budget_text(enough)} would do"
                print(
                    f"remint: {self._who}step {self._number}, {1 + again / computed:.0f}x slower: the budget of "
                    f"{format_bytes(self.run.budget_bytes)} is small for it{would_do}. `remint advise` finds a "
                    "better one.",
                    file=sys.stderr,
                    flush=True,
                )
        return self._number == self._stop_after


def record_command(options: argparse.Namespace) -> int:
    """Run `options.script` and write its trace; return its exit code."""
    check_script(options)
    check_outputs(options.output, options.json)
    from remint.runtime.recording import record

    stdout = reserve_stdout() if options.json == "-" else None
    with record(costs=options.costs, source_lines=options.source_lines) as recording:
        ended = run_script(options)
    trace = recording.trace
    trace.save(options.output)
    if str(ended):
        print(f"remint: {ended}", file=sys.stderr)
    print(
        f"{options.output}: {trace.num_ops:,} ops in {format_seconds(trace.seconds)}, {trace.num_tensors:,} tensors, "
        f"peak {format_bytes(recording.peak_bytes)}",
        file=sys.stderr,
    )
    if options.json is not None:
        summary = {"trace": options.output, "num_ops": trace.num_ops, "num_tensors": trace.num_tensors}
        figures = summary | {"seconds": trace.seconds, "peak_bytes": recording.peak_bytes}
        write_json(options.json, figures, stdout=stdout)
    return ended.code
