"""The commands `remint plan` and `remint capture`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remint.cli.output import EXAMPLES, add_json, check_budgets, check_outputs, write_json
from remint.cli.step_function import load_step
from remint.errors import BudgetError
from remint.file_format import kind_of
from remint.graph import Graph, Plan, Tier, verify
from remint.planners import PLANNERS, Progress, plan
from remint.units import format_bytes, format_seconds, parse_budget

if TYPE_CHECKING:
    from argparse import _SubParsersAction


_PLAN = """\
examples:
  remint plan step.graph --budget 50%
  remint plan step.graph --budget 2GiB --planner checkmate --explain
  remint plan step.graph --budget 60% -o step.plan
  remint plan step.graph --budget 60% --offload 16GiB --bandwidth 8GB
  remint plan step.graph --budget 70%,50% --compare auto,chen-sqrt --json -
"""

_CAPTURE = """\
examples:
  remint capture train.py:step -o step.graph
  remint capture train.py:step -o step.graph --costs estimate --json -
"""


def add_commands(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the two commands; each sets `command`, a function from the parsed arguments to an exit code."""
    parser = commands.add_parser(
        "plan",
        help="find the cheapest schedule of a graph inside a budget",
        description="Decide when each value is computed, freed and recomputed, so that a step fits in the budget and "
        "takes as little time as possible. Prints what the plan costs, and how far it can be from the best one.",
        epilog=_PLAN,
        **EXAMPLES,
    )
    parser.add_argument("graph", type=Path, help="a graph file, as `remint capture` writes it")
    parser.add_argument(
        "--budget", required=True, help='bytes ("2GiB") or a percentage of the peak; several with commas'
    )
    parser.add_argument(
        "--planner", default="auto", choices=tuple(PLANNERS), metavar="PLANNER", help=f"one of {', '.join(PLANNERS)}"
    )
    parser.add_argument("--offload", metavar="BYTES", help="also copy values to a second tier of so many bytes")
    parser.add_argument(
        "--bandwidth", metavar="BYTES", help='bytes per second to the tier and back ("8GB"), one transfer at a time'
    )
    parser.add_argument("--time-limit", type=float, default=60, metavar="SECONDS", help="CPU time for each plan (60)")
    parser.add_argument("--seed", type=int, default=0, help="of the planners that search at random (default: 0)")
    parser.add_argument("-o", "--output", type=Path, help="write the plan to this file")
    parser.add_argument("--explain", action="store_true", help="show what is rematerialized, by op and line")
    parser.add_argument("--compare", metavar="PLANNERS", help='a table of these planners (commas), or of "all" of them')
    add_json(parser, "the figures of each plan")
    parser.set_defaults(command=run_plan)

    parser = commands.add_parser(
        "capture",
        help="write the graph of one training step of a model",
        description="Write the graph of one training step, forward and backward: its ops, the bytes that each makes, "
        "and what each costs. `remint plan` reads it.",
        epilog=_CAPTURE,
        **EXAMPLES,
    )
    parser.add_argument(
        "function",
        help="script.py:fn, where fn() returns (model, args), and optionally kwargs and a loss function",
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="the graph file to write")
    parser.add_argument(
        "--costs",
        choices=("measure", "estimate"),
        default="measure",
        help="measure: run each distinct op; estimate: run nothing, and know no workspaces (default: measure)",
    )
    add_json(parser, "the figures of the graph")
    parser.set_defaults(command=run_capture)


def run_plan(options: argparse.Namespace) -> int:
    """Plan, or compare planners; return an exit code."""
    check_outputs(options.output, options.json)
    graph = _load(options.graph)
    tier = _tier(options)
    check_budgets(options.budget, peak_bytes=graph.peak_bytes)
    budgets = [parse_budget(b, peak_bytes=graph.peak_bytes) for b in options.budget.split(",")]
    say = print if options.json != "-" else _nothing
    say(
        f"{len(graph.ops)} ops, {format_seconds(graph.cost)}, peak {format_bytes(graph.peak_bytes)}, "
        f"constants {format_bytes(graph.constant_bytes)}; no schedule below "
        f"{format_bytes(graph.min_budget_bytes)}"
    )
    if options.compare:
        names = tuple(PLANNERS) if options.compare == "all" else tuple(options.compare.split(","))
        unknown = [name for name in names if name not in PLANNERS]
        if unknown:
            raise ValueError(f"there is no planner {unknown[0]!r}: choose from {', '.join(PLANNERS)}, or all")
        return _compare(graph, budgets, names, tier, options)
    if options.output and len(budgets) > 1:
        raise ValueError("one plan goes into one file: give one budget with -o")
    code = 0
    rows: list[dict[str, Any]] = []
    for budget in budgets:
        try:
            with _Live() as live:
                made = plan(
                    graph,
                    budget,
                    options.planner,
                    options.time_limit,
                    options.seed,
                    progress=live.show,
                    offload=tier,
                )
        except BudgetError as error:
            print(f"remint: {error}", file=sys.stderr)
            code = 2
            continue
        verify(graph, made, budget)
        rows.append(_row(options.planner, budget, made, made.seconds))
        say(
            f"{made.planner} at {format_bytes(budget)}: {format_seconds(made.cost)} (+{made.overhead:.3%}), "
            f"peak {format_bytes(made.peak_bytes)}, bound +{_part(made.bound, graph):.3%}, gap {made.gap:.3%}"
            f"{' (optimal)' if made.optimal else ''}, in {made.seconds:.1f} s"
        )
        if tier is not None:
            there, back = format_bytes(made.offloaded_bytes), format_bytes(made.fetched_bytes)
            say(f"  {there} go to the tier, {back} come back")
        if options.explain:
            say(made.explain())
        if options.output:
            made.save(options.output)
    if options.json is not None:
        write_json(options.json, rows)
    return code


def _tier(options: argparse.Namespace) -> Tier | None:
    if (options.offload is None) != (options.bandwidth is None):
        raise ValueError("a tier has a size and a speed: give both --offload and --bandwidth, or none")
    return None if options.offload is None else Tier(bytes=options.offload, bandwidth=options.bandwidth)


def _load(path: Path) -> Graph:
    if kind_of(path) == "trace":
        raise ValueError(
            f"{path} is a trace, and a plan needs a graph: write one with `remint capture`, or put plans of this trace "
            f"beside policies with `remint sweep {path} --planner auto`"
        )
    try:
        return Graph.load(path)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: {error}; write it again with `remint capture`") from error


def _nothing(*words: object) -> None:
    """Print nothing: standard output is for JSON."""


def _row(planner: str, budget: int, made: Plan | None, seconds: float) -> dict[str, Any]:
    row: dict[str, Any] = {"planner": planner, "budget_bytes": budget, "found": made is not None, "seconds": seconds}
    if made is None:
        return row
    if made.tier is not None:
        row |= {"offloaded_bytes": made.offloaded_bytes, "fetched_bytes": made.fetched_bytes}
    return row | {
        "cost": made.cost,
        "overhead": made.overhead,
        "bound": made.bound,
        "gap": made.gap,
        "optimal": made.optimal,
        "peak_bytes": made.peak_bytes,
    }


def _compare(
    graph: Graph, budgets: list[int], names: tuple[str, ...], tier: Tier | None, options: argparse.Namespace
) -> int:
    from rich.console import Console
    from rich.table import Table

    rows: list[dict[str, Any]] = []
    for budget in budgets:
        title = f"{format_bytes(budget)} ({budget / graph.peak_bytes:.0%} of the peak)"
        table = Table("planner", "overhead", "bound", "gap", "peak", "seconds", title=title)
        plans: list[tuple[str, Plan | None, float]] = []
        for name in names:
            began = time.monotonic()
            try:
                made = plan(graph, budget, name, options.time_limit, options.seed, offload=tier)
                verify(graph, made, budget)
            except BudgetError:
                made = None
            except ValueError as error:
                print(f"remint: {name}: {error}", file=sys.stderr)
                continue
            plans.append((name, made, time.monotonic() - began))
        rows += [_row(name, budget, made, seconds) for name, made, seconds in plans]
        if options.json == "-":
            continue
        best = max((p.bound for _, p, _ in plans if p is not None), default=graph.cost)
        for name, made, seconds in plans:
            if made is None:
                table.add_row(name, "–", "", "", "", f"{seconds:.2f}")
            else:
                table.add_row(
                    name,
                    f"{made.overhead:.3%}",
                    f"{_part(made.bound, graph):.3%}",
                    f"{(made.cost - best) / best if best else 0:.3%}",
                    format_bytes(made.peak_bytes),
                    f"{seconds:.2f}",
                )
        Console().print(table)
        print("gap: to the best bound of all; –: no plan inside the budget")
    if options.json is not None:
        write_json(options.json, rows)
    return 0


def run_capture(options: argparse.Namespace) -> int:
    """Capture what a function of a script returns; return an exit code."""
    from remint.capture import capture

    check_outputs(options.output, options.json)
    model, args, kwargs, loss = load_step(options.function)()
    graph = capture(model, args, kwargs, loss=loss, costs=options.costs)
    graph.save(options.output)
    if options.json is not None:
        figures = {"num_ops": len(graph.ops), "seconds": graph.cost, "peak_bytes": graph.peak_bytes}
        write_json(options.json, {"output": str(options.output), **figures, "min_budget_bytes": graph.min_budget_bytes})
    if options.json != "-":
        found = f"{len(graph.ops)} ops, {format_seconds(graph.cost)}, peak {format_bytes(graph.peak_bytes)}"
        print(f"{options.output}: {found}")
    return 0


class _Live:
    """One line with the incumbent, the bound and the gap; a line now and then where there is no terminal."""

    def __enter__(self) -> _Live:
        self.last = 0.0
        self.terminal = sys.stderr.isatty()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self.last < (0.05 if self.terminal else 1.0):
            return
        self.last = now
        base = progress.base or 1.0
        found = "no plan yet" if progress.cost is None else f"plan +{progress.cost / base - 1:.3%}"
        gap = "" if progress.gap is None else f", gap {progress.gap:.3%}"
        bound = f"bound +{progress.bound / base - 1:.3%}"
        line = f"{progress.seconds:6.1f} s  {progress.planner}: {found}, {bound}{gap}"
        print(f"\r\x1b[K{line}" if self.terminal else line, end="" if self.terminal else "\n", file=sys.stderr)


def _part(cost: float, graph: Graph) -> float:
    return cost / graph.cost - 1 if graph.cost else 0.0
