"""The commands `remint simulate`, `remint sweep` and `remint trace info`: traces on the null device."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from remint.cli.output import (
    EXAMPLES,
    add_json,
    add_max_slowdown,
    add_tier,
    check_budgets,
    check_outputs,
    tier_of,
    write_json,
)
from remint.defaults import MEMORY, POLICY
from remint.file_format import kind_of
from remint.results import Sweep
from remint.results.sweep import Row
from remint.simulator import policy_names, sweep
from remint.trace import Trace
from remint.units import format_bytes, format_seconds

_SIMULATE = """\
examples:
  remint simulate step.trace --budget 50%
  remint simulate step.trace resnet.log.gz --policy all
  remint simulate step.trace --budget 50%,25% --offload 16GiB --bandwidth 8GB
  remint simulate step.trace --policy coop,dtr-eq --json -
"""

_SWEEP = """\
examples:
  remint sweep step.trace -o sweep.html
  remint sweep step.trace --planner auto --budget 80%,60% --json sweep.json
  remint report sweep.json -o sweep.svg
"""

_TRACE = """\
examples:
  remint trace info step.trace
  remint trace info resnet32.log.gz --ops 10 --json -
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands; each sets `command`, a function from the parsed arguments to an exit code."""
    parser = commands.add_parser(
        "simulate",
        help="say what a trace costs under budgets, with any policy: nothing is computed",
        description="Run every trace with every policy under every budget, and print what each costs. It is the engine "
        "of real runs, on a device that only advances a clock.",
        epilog=_SIMULATE,
        **EXAMPLES,
    )
    _add_options(parser, policy=POLICY, budget="90%,70%,50%,30%")
    parser.add_argument("--csv", metavar="PATH", help="write the rows as CSV; - for standard output")
    add_json(parser, "the rows")
    parser.set_defaults(command=_simulate, planner="")

    parser = commands.add_parser(
        "sweep",
        help="all policies and planners under many budgets, as a table and a plot",
        description="Slowdown against budget: every policy, and planners on the same step, on one plot.",
        epilog=_SWEEP,
        **EXAMPLES,
    )
    _add_options(parser, policy="all", budget="90%,80%,70%,60%,50%,40%,30%")
    parser.add_argument("--planner", default="", help="planners to put beside the policies, separated by commas")
    parser.add_argument(
        "--time-limit", type=float, default=10, metavar="SECONDS", help="CPU time for each plan (default: 10)"
    )
    parser.add_argument("-o", "--output", metavar="PATH", help="write the plot: .html, .png, .svg or .pdf")
    parser.add_argument("--csv", metavar="PATH", help="write the rows as CSV; - for standard output")
    add_json(parser, "the rows")
    parser.set_defaults(command=_simulate)

    about_traces = "Say what is in a trace: ops, time, the peak without a budget, and the least budget possible."
    parser = commands.add_parser("trace", help="look at traces", description=about_traces, epilog=_TRACE, **EXAMPLES)
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    info = actions.add_parser(
        "info",
        help="what is in a trace, and which budgets are possible",
        description=about_traces,
        epilog=_TRACE,
        **EXAMPLES,
    )
    info.add_argument("files", nargs="+", metavar="FILE", help="traces; *.log and *.log.gz are DTR's logs")
    info.add_argument("--ops", type=int, default=5, metavar="N", help="show the N most expensive ops (default: 5)")
    add_json(info, "the figures")
    info.set_defaults(command=_trace_info)


def _add_options(parser: argparse.ArgumentParser, *, policy: str, budget: str) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="traces; *.log and *.log.gz are DTR's logs")
    names = ", ".join(policy_names())
    parser.add_argument("--policy", default=policy, help=f"'all', or some of {names} (default: {policy})")
    parser.add_argument(
        "--budget",
        default=budget,
        help='bytes ("2GiB") or percent of the trace\'s own peak, separated by commas '
        f"(default: {budget.replace('%', '%%')})",
    )
    parser.add_argument(
        "--memory",
        default=MEMORY,
        choices=["ideal", "arena"],
        help=f"arena: blocks have addresses, as in a run; ideal: bytes are counted, as in DTR's simulator "
        f"(default: {MEMORY})",
    )
    parser.add_argument(
        "--deallocation", default="eager", choices=["ignore", "lazy", "eager", "banish"], help="default: eager"
    )
    parser.add_argument("--inplace", choices=["copy", "ghost"], help="default: ghost on the arena, else copy")
    parser.add_argument("--partition", action=argparse.BooleanOptionalAction, help="cheap and expensive bytes apart")
    parser.add_argument(
        "--moving",
        action=argparse.BooleanOptionalAction,
        help="move blocks together where no free block is large enough (default: on the arena)",
    )
    parser.add_argument(
        "--ignore-small",
        type=float,
        default=0.0,
        metavar="FRACTION",
        help="pass over candidates smaller than this fraction of their mean size",
    )
    parser.add_argument("--sample", action="store_true", help="score sqrt(n) candidates instead of all")
    parser.add_argument("--seed", type=int, default=0, help="for the policy random, and for --sample (default: 0)")
    add_tier(parser)
    add_max_slowdown(parser, "a slower run ends as 'thrash'")
    parser.add_argument("--jobs", type=int, default=2, help="simulations at a time (default: 2)")


def _simulate(args: argparse.Namespace) -> int:
    check_outputs(args.csv, args.json, getattr(args, "output", None))
    traces = {trace_name(path): load_trace(path) for path in args.files}
    if len(traces) < len(args.files):
        raise ValueError("two files have the same name: rename one, so that their rows can be told apart")
    check_budgets(args.budget, peak_bytes=min((trace.peak_bytes for trace in traces.values()), default=0))
    budgets = args.budget.split(",")
    rows = sweep(
        traces,
        budgets=budgets,
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
        max_slowdown=args.max_slowdown,
        offload=tier_of(args),
    )
    if args.planner:
        from remint.planners.sweep import sweep_planners

        rows = Sweep([*rows, *sweep_planners(traces, args.planner.split(","), budgets, time_limit=args.time_limit)])
    if args.csv == "-":
        sys.stdout.write(rows.to_csv())
    elif args.csv is not None:
        rows.to_csv(args.csv)
    if args.json is not None:
        write_json(args.json, list(rows))
    if "-" not in (args.csv, args.json):
        print_simulations(rows)
    if getattr(args, "output", None):
        from remint.report import write

        write(args.output, [rows])
        print(f"plot: {args.output}", file=sys.stderr)
    return 0


# The columns of a table, those that a narrow terminal can do without last.
_COLUMNS: dict[str, Callable[[Row], str]] = {
    "budget": lambda row: str(row["budget"]),
    "status": lambda row: row["status"] if row["status"] == "ok" else f"[red]{row['status']}[/red]",
    "slowdown": lambda row: f"{row['slowdown']:.3f}x",
    "peak": lambda row: format_bytes(row["peak_bytes"]),
    "rematerializations": lambda row: f"{row['num_rematerializations']:,}",
    "fetches": lambda row: f"{row.get('num_fetches', 0):,}",
    "fetched": lambda row: format_bytes(row.get("fetched_bytes", 0)),
    "evictions": lambda row: f"{row['num_evictions']:,}",
    "bytes": lambda row: format_bytes(row["budget_bytes"]),
    "fragmentation": lambda row: f"{row['fragmentation']:.1%}",
    "search": lambda row: format_seconds(row["search_seconds"]),
}


def print_simulations(rows: Sweep) -> None:
    """Print the rows of a sweep as a table, with as many columns as the terminal has room for."""
    left_out: tuple[str, ...] = () if any(row["memory"] == "arena" for row in rows) else ("fragmentation",)
    if not any(row.get("num_offloads") for row in rows):
        left_out += ("fetches", "fetched")
    columns = [name for name in _COLUMNS if name not in left_out]
    console = Console()

    def needed(names: Sequence[str]) -> int:
        return console.measure(_table(rows, names), options=console.options.update(width=1000)).maximum

    shown = list(columns)
    while console.is_terminal and len(shown) > 3 and needed(shown) > console.width:
        shown.pop()
    # In a file or a pipe, a table that is cut or folded cannot be read.
    (console if console.is_terminal else Console(width=needed(shown))).print(_table(rows, shown))
    if shown != columns:
        hidden = ", ".join(columns[len(shown) :])
        more = f"A wider terminal also shows: {hidden}. --csv and --json have everything."
        print(textwrap.fill(more, console.width), file=sys.stderr)


def _table(rows: Sweep, columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("trace", "policy"):
        table.add_column(heading)
    for heading in columns:
        table.add_column(heading, justify="right")
    previous = None
    for row in rows:
        group = (row["trace"], row["policy"])
        if previous is not None and group != previous:
            table.add_section()
        table.add_row(*(group if group != previous else ("", "")), *(_COLUMNS[name](row) for name in columns))
        previous = group
    return table


def _trace_info(args: argparse.Namespace) -> int:
    found = []
    for path in args.files:
        trace = load_trace(path)
        totals = sorted(trace.seconds_by_name().items(), key=lambda item: -item[1][1])[: args.ops]
        found.append(
            {
                "file": path,
                "num_events": trace.num_events,
                "num_ops": trace.num_ops,
                "num_tensors": trace.num_tensors,
                "seconds": trace.seconds,
                "peak_bytes": trace.peak_bytes,
                "constant_bytes": trace.constant_bytes,
                "min_budget_bytes": trace.min_budget_bytes,
                "ops": [{"name": name, "times": count, "seconds": seconds} for name, (count, seconds) in totals],
            }
        )
        if args.json == "-":
            continue
        print(f"{path}")
        print(f"  events       {trace.num_events:,} ({trace.num_ops:,} ops, {trace.num_tensors:,} tensors)")
        print(f"  time         {format_seconds(trace.seconds)}")
        print(f"  peak         {format_bytes(trace.peak_bytes)} ({trace.peak_bytes} bytes), without a budget")
        print(f"  constants    {format_bytes(trace.constant_bytes)}")
        print(f"  least budget {format_bytes(trace.min_budget_bytes)}: no schedule can do with less")
        for name, (count, seconds) in totals:
            share = seconds / trace.seconds if trace.seconds else 0.0
            print(f"  {share:12.1%} {name}, {count:,} times, {format_seconds(seconds)}")
    if args.json is not None:
        write_json(args.json, found)
    return 0


def trace_name(path: str) -> str:
    """Return what a file is called in tables: its name up to the first dot."""
    return Path(path).name.split(".")[0]


def load_trace(path: str) -> Trace:
    """Read a trace, or a log of DTR's."""
    if path.endswith((".log", ".log.gz")):
        return Trace.from_dtr_log(path)
    kind = kind_of(path)
    if kind not in (None, "trace"):
        raise ValueError(f"{path} is a {kind}, not a trace: record one with `remint record`")
    return Trace.load(path)
