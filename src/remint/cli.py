"""The command line: `remint simulate`, `remint trace`, and the commands of cli_plan.py and cli_run.py."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from remint.cli_plan import add_commands
from remint.cli_run import add_run
from remint.errors import BudgetError
from remint.simulator import Sweep, policy_names, sweep
from remint.trace import Trace
from remint.units import format_bytes, format_seconds

_EXAMPLES = """\
examples:
  remint simulate step.trace --budget 50%
  remint simulate step.trace resnet.log.gz --policy all --budget 90%,70%,50%,30% --memory arena
  remint simulate step.trace --policy coop,dtr-eq --memory arena --json -
  remint trace info step.trace
  remint record -o step.trace train.py --epochs 1
  remint run --budget 2GiB train.py --epochs 3
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, or 2 for a mistake in what was asked."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        code: int = args.command(args)
    except (ValueError, BudgetError, OSError) as error:
        print(f"remint: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("remint: interrupted", file=sys.stderr)
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="remint",
        description="Train inside a memory budget that holds, by tensor rematerialization.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_simulate(commands)
    _add_trace(commands)
    add_commands(commands)
    add_run(commands)
    return parser


def _add_simulate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "simulate",
        help="run traces under budgets with any policy, on the engine with a device that only advances a clock",
        description="Run every trace with every policy under every budget, and print what each costs.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="traces; *.log and *.log.gz are DTR's logs")
    parser.add_argument(
        "--policy", default="dtr-eq", help=f"'all', or some of {', '.join(policy_names())} (default: dtr-eq)"
    )
    parser.add_argument(
        "--budget",
        default="90%,70%,50%,30%",
        help='bytes ("2GiB") or percent of the trace\'s own peak, separated by commas (default: 90%%,70%%,50%%,30%%)',
    )
    parser.add_argument("--memory", default="ideal", choices=["ideal", "arena"], help="default: ideal")
    parser.add_argument("--deallocation", default="eager", choices=["ignore", "eager", "banish"], help="default: eager")
    parser.add_argument("--inplace", choices=["copy", "ghost"], help="default: ghost on the arena, else copy")
    parser.add_argument("--partition", action=argparse.BooleanOptionalAction, help="cheap and expensive bytes apart")
    parser.add_argument(
        "--moving", action=argparse.BooleanOptionalAction, help="move blocks together if there is no room"
    )
    parser.add_argument("--ignore-small", type=float, default=0.0, metavar="FRACTION", help="of the mean size")
    parser.add_argument("--sample", action="store_true", help="score sqrt(n) candidates instead of all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-slowdown", type=float, default=2.0, metavar="X", help="beyond is 'thrash' (default: 2)")
    parser.add_argument("--jobs", type=int, default=2, help="simulations at a time (default: 2)")
    parser.add_argument("--csv", metavar="PATH", help="write the rows as CSV; - for standard output")
    parser.add_argument("--json", metavar="PATH", help="write the rows as JSON; - for standard output")
    parser.set_defaults(command=_simulate)


def _simulate(args: argparse.Namespace) -> int:
    traces = {_trace_name(path): _load(path) for path in args.files}
    if len(traces) < len(args.files):
        raise ValueError("two files have the same name: rename one, so that their rows can be told apart")
    rows = sweep(
        traces,
        budgets=args.budget.split(","),
        policies="all" if args.policy == "all" else args.policy.split(","),
        memory=args.memory,
        jobs=args.jobs,
        progress=sys.stderr.isatty(),
        deallocation=args.deallocation,
        inplace=args.inplace,
        partition=args.partition,
        moving=args.moving,
        ignore_small=args.ignore_small,
        sample=args.sample,
        seed=args.seed,
        max_slowdown=args.max_slowdown if args.max_slowdown > 0 else math.nan,
    )
    for path, text in ((args.csv, rows.to_csv), (args.json, rows.to_json)):
        if path == "-":
            sys.stdout.write(text())
        elif path is not None:
            text(path)
    if "-" not in (args.csv, args.json):
        print_simulations(rows)
    return 0


def print_simulations(rows: Sweep) -> None:
    """Print the rows of a sweep as a table."""
    table = _simulation_table(rows)
    # A table that is cut or folded to the terminal's width cannot be read.
    needed = Console(width=1000).measure(table).maximum
    Console(width=max(Console().width, needed)).print(table)


def _simulation_table(rows: Sweep) -> Table:
    arena = any(row["memory"] == "arena" for row in rows)
    table = Table(box=None, pad_edge=False)
    for heading in ("trace", "policy"):
        table.add_column(heading)
    headings = ["budget", "", "status", "slowdown", "peak", "evictions", "rematerializations", "search"]
    for heading in headings + (["fragmentation"] if arena else []):
        table.add_column(heading, justify="right")
    previous = None
    for row in rows:
        group = (row["trace"], row["policy"])
        if previous is not None and group != previous:
            table.add_section()
        cells = [
            *(group if group != previous else ("", "")),
            str(row["budget"]),
            format_bytes(row["budget_bytes"]),
            row["status"] if row["status"] == "ok" else f"[red]{row['status']}[/red]",
            f"{row['slowdown']:.3f}x",
            format_bytes(row["peak_bytes"]),
            f"{row['num_evictions']:,}",
            f"{row['num_rematerializations']:,}",
            format_seconds(row["search_seconds"]),
        ]
        table.add_row(*cells, *([f"{row['fragmentation']:.1%}"] if arena else []))
        previous = group
    return table


def _add_trace(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("trace", help="look at traces")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    info = actions.add_parser("info", help="what is in a trace, and which budgets are thinkable")
    info.add_argument("files", nargs="+", metavar="FILE", help="traces; *.log and *.log.gz are DTR's logs")
    info.add_argument("--ops", type=int, default=5, metavar="N", help="show the N most expensive ops (default: 5)")
    info.set_defaults(command=_trace_info)


def _trace_info(args: argparse.Namespace) -> int:
    for path in args.files:
        trace = _load(path)
        print(f"{path}")
        print(f"  events       {trace.num_events:,} ({trace.num_ops:,} ops, {trace.num_tensors:,} tensors)")
        print(f"  time         {format_seconds(trace.seconds)}")
        print(f"  peak         {format_bytes(trace.peak_bytes)} ({trace.peak_bytes} bytes), without a budget")
        print(f"  constants    {format_bytes(trace.constant_bytes)}")
        print(f"  least budget {format_bytes(trace.min_budget_bytes)}: no schedule can do with less")
        totals = trace.seconds_by_name()
        for name, (count, seconds) in sorted(totals.items(), key=lambda item: -item[1][1])[: args.ops]:
            share = seconds / trace.seconds if trace.seconds else 0.0
            print(f"  {share:12.1%} {name}, {count:,} times, {format_seconds(seconds)}")
    return 0


def _trace_name(path: str) -> str:
    return Path(path).name.split(".")[0]


def _load(path: str) -> Trace:
    if path.endswith((".log", ".log.gz")):
        return Trace.from_dtr_log(path)
    return Trace.load(path)
