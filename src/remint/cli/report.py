"""The command `remint report`."""

from __future__ import annotations

import argparse
from pathlib import Path

from remint.cli.output import EXAMPLES, add_json, add_tier, tier_of, write_json
from remint.defaults import POLICY

_REPORT = """\
examples:
  remint report step.plan -o plan.html
  remint report step.trace --budget 50% --policy coop,dtr-eq -o arena.html
  remint report step.trace --budget 50% --offload 4GiB -o tier.html
  remint report run.json step.plan sweep.json -o all.html
  remint report step.trace --budget 50% -o arena.pickle   for memory_viz
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command; it sets `command`, a function from the parsed arguments to an exit code."""
    parser = commands.add_parser(
        "report",
        help="write a page about runs, plans, traces and sweeps, which works offline",
        description="Write a page about the files: memory over time, the arena's blocks, what was "
        "rematerialized or offloaded and why, schedules, slowdown against budget.",
        epilog=_REPORT,
        **EXAMPLES,
    )
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="runs (run --json), plans, graphs, traces, sweeps (--json); *.log, *.log.gz: DTR's logs",
    )
    parser.add_argument(
        "-o", "--output", default="report.html", help=".html (default: report.html), .png, .svg, .pdf or .pickle"
    )
    parser.add_argument("--budget", metavar="BUDGET", help="run traces inside this: bytes, or percent of their peak")
    parser.add_argument("--policy", default=POLICY, help=f"for traces: one or more, with commas (default: {POLICY})")
    add_tier(parser)
    parser.add_argument("--title", help="the page's title")
    add_json(parser, "the figures of what is shown")
    parser.set_defaults(command=_report)


def _report(args: argparse.Namespace) -> int:
    from remint.report import write
    from remint.report.files import load_items
    from remint.results.run import Run

    if args.offload is not None and args.budget is None:
        raise ValueError("--offload is for traces that are run in a budget: give --budget, too")
    is_page = Path(args.output).suffix in (".html", ".htm")  # pictures show one item
    items = load_items(
        args.files, budget=args.budget, policies=args.policy.split(","), curves=is_page, offload=tier_of(args)
    )
    write(args.output, items, title=args.title)
    if args.json is not None:
        figures = {name: item.summary() for name, item in items.items() if isinstance(item, Run)}
        write_json(args.json, {"output": args.output, "items": list(items), "runs": figures})
    if args.json != "-":
        print(f"report: {Path(args.output).resolve()}")
    return 0
