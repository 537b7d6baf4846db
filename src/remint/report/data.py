"""What the page shows of each item, as plain data: page.js draws it and decides nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Protocol, TypeAlias

from remint.graph import Plan
from remint.offload import Offload
from remint.report.columns import again_columns, holder_rows, line_columns
from remint.report.plan_data import plan_data
from remint.report.tier_data import tier_cards, transfer_columns
from remint.results import Sweep
from remint.results.advice import Advice, Choice, slower
from remint.results.block_log import BlockLog
from remint.results.holders import peak_holders
from remint.results.learning import Learning
from remint.results.run import Run
from remint.results.verdict import verdict
from remint.trace import Trace
from remint.units import format_bytes, format_seconds

MOST_BLOCKS = 40_000
# A sweep draws one of these in the foreground: the default of real runs, or else that of simulations.
DEFAULT_POLICIES = ("coop", "dtr-eq")
# Of the curve of a trace.
CURVE_BUDGETS = ("90%", "80%", "70%", "60%", "50%", "40%", "30%", "20%")
CURVE_MAX_SLOWDOWN = 10.0


class _Finishes(Protocol):
    def finished(self) -> Run: ...


Item: TypeAlias = Run | _Finishes | Plan | Sweep | Trace | Advice


def page_data(
    items: Sequence[Item] | Mapping[str, Item],
    *,
    title: str | None = None,
    groups: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return what the page shows, as data for JSON; `groups` says which named items are compared with each other."""
    named = items.items() if isinstance(items, Mapping) else [("", item) for item in items]
    runs: list[dict[str, Any]] = []
    sweeps: list[dict[str, Any]] = []
    advice: list[dict[str, Any]] = []
    for name, item in named:
        if isinstance(item, Advice):
            advice.append(advice_data(item))
        elif isinstance(item, Sweep):
            sweeps += sweep_data(item)
        elif isinstance(item, Plan):
            runs.append(plan_data(item, name))
        elif isinstance(item, Trace):
            runs.append(trace_data(item, name))
            sweeps += sweep_data(cost_curve(item, name))
        else:
            runs.append(run_data(item if isinstance(item, Run) else item.finished(), name))
        if not isinstance(item, Advice | Sweep):
            runs[-1]["group"] = (groups or {}).get(name, "")
    when = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    if title is None and advice and not runs:
        title = advice[0]["label"]
    title = title or (runs[0]["label"] if len(runs) == 1 else "report" if runs or not sweeps else "sweep")
    return {"title": title, "subtitle": when, "runs": runs, "sweeps": sweeps, "advice": advice}


def advice_data(advice: Advice) -> dict[str, Any]:
    """Return the answer: a sentence, the holders, the table of budgets, their curve, and how to use one."""
    used = advice.used
    choices = (*advice.choices, advice.least, advice.recommended, advice.asked)
    found = {c.budget_bytes: c for c in choices if c is not None and c.budget_bytes < advice.peak_bytes}
    chart = {
        "name": advice.subject,
        "percent": False,
        "series": [
            _advice_series("then, with the step learned", "learned", found, prominent=True),
            _advice_series("the first steps", "greedy", found, prominent=False),
            *([_advice_series("with offload", "offload", found, prominent=True)] if advice.offload else []),
        ],
    }
    return {
        "label": f"Which budget for {advice.subject}?",
        "verdict": advice.verdict(),
        "estimated": advice.estimated,
        "holders": holder_rows(advice.holders),
        "peak": advice.peak_bytes,
        "outside": [[holder.kind, holder.nbytes] for holder in advice.outside],
        "headings": advice.headings(),
        "table": [list(row) for row in advice.table()],
        "proof": f"Nothing works below {format_bytes(advice.min_budget_bytes)}: {advice.min_budget_reason}.",
        "about": advice.about(used) if used is not None else "",
        "use": advice.how_to(used) if used is not None else "",
        "chart": chart,
    }


def _advice_series(name: str, which: str, found: Mapping[int, Choice], *, prominent: bool) -> dict[str, Any]:
    points = [
        {"x": nbytes, "slowdown": getattr(found[nbytes], which), "peak": nbytes, "budget": nbytes, "times": None}
        for nbytes in sorted(found)
    ]
    return {"name": name, "planner": False, "prominent": prominent, "points": points, "ends": ""}


def _log_holders(log: BlockLog) -> list[list[Any]]:
    return holder_rows(peak_holders(log))


def run_data(run: Run, name: str = "") -> dict[str, Any]:
    """Return the figures, the memory over time and, if the run has them, the blocks of a run."""
    label = f"{run.policy}, {format_bytes(run.budget_bytes)}"
    data: dict[str, Any] = {
        "type": "run",
        "label": f"{name}: {label}" if name else label,
        "verdict": verdict(run.summary(), wanted_bytes=run.wanted_bytes),
        "budget": run.budget_bytes,
        "peak": run.peak_bytes,
        "slowdown": run.slowdown,
        "times": run.num_rematerializations,
        "failure": run.failure,
        "marks": [],
        **again_columns(run.rematerialized),
        "cards": [
            [run.status, f"{run.policy} on {run.memory} memory", run.status != "ok"],
            [format_bytes(run.peak_bytes), f"peak, of {format_bytes(run.budget_bytes)}"],
            [f"{run.slowdown:.3f}×", f"slowdown, {format_seconds(run.rematerialized_seconds)} rematerialized"],
            [f"{run.num_evictions:,}", f"evictions for {run.num_ops:,} ops, {run.num_frees:,} frees"],
            [f"{run.num_rematerializations:,}", "rematerializations"],
            [f"{run.fragmentation:.1%}", "fragmentation: free bytes that did not serve"],
            [format_seconds(run.search_seconds), f"searching, {run.num_searches:,} times"],
        ],
    }
    if run.memory != "arena":
        del data["cards"][5]
    if run.num_offloads or run.num_clean_offloads:
        data["cards"] += tier_cards(run)
    if run.collective_seconds:
        data["collectives"] = run.collective_seconds
        data["cards"].append([format_seconds(run.collective_seconds), "in collectives, with waiting for other ranks"])
    if run.learning is not None and run.learning.saw_steps:
        data["steps"] = steps_data(run.learning)
    if run.blocks is not None and len(run.blocks):
        line = run.blocks.memory()
        in_tier = line.offloaded if line.offloaded.any() else None
        data["line"] = line_columns(line.seconds, line.resident, line.pinned, line.evicted, in_tier)
        data |= transfer_columns(run.blocks)
        data["marks"] = [list(mark) for mark in run.blocks.marks()]
        data |= _rectangles(run)
        data["holders"] = _log_holders(run.blocks)
        data["end"] = float(line.seconds[-1])
    elif run.timeline is not None and len(run.timeline.seconds):
        data["line"] = line_columns(run.timeline.seconds, run.timeline.nbytes)
        data["end"] = float(run.timeline.seconds[-1])
    return data


def steps_data(learning: Learning) -> dict[str, Any]:
    """Return how the steps of a run were decided on: a sentence, and a row for each way."""
    rows = [
        [
            name,
            f"{phase.num_steps:,}",
            f"{phase.slowdown:.3f}×",
            format_seconds(phase.rematerialized_seconds),
            format_seconds(phase.search_seconds),
        ]
        for name, phase in learning.phases.items()
    ]
    return {"rows": rows, "note": f"{learning}."}


def trace_data(trace: Trace, name: str = "") -> dict[str, Any]:
    """Return the figures of a trace: what it takes without a budget."""
    from remint.simulator import simulate

    run = simulate(trace, budget=2 * trace.peak_bytes, policy="coop", memory="arena", blocks=True)
    data = run_data(run, name)
    totals = sorted(trace.seconds_by_name().items(), key=lambda item: -item[1][1])
    data["label"] = f"{name or 'trace'}, without a budget"
    data["verdict"] = f"Takes {format_bytes(run.peak_bytes)} and {format_seconds(trace.seconds)} without a budget."
    data["cards"] = [
        [format_bytes(trace.peak_bytes), "peak without a budget"],
        [format_bytes(trace.min_budget_bytes), "no schedule can do with less"],
        [format_bytes(trace.constant_bytes), "constants"],
        [f"{trace.num_ops:,}", f"ops in {format_seconds(trace.seconds)}"],
        *([format_seconds(seconds), f"in {count:,} × {name}"] for name, (count, seconds) in totals[:2]),
    ]
    # Show its own peak, not the budget that it was simulated in.
    data["budget"] = max(r + n for r, n in zip(data["rects"]["address"], data["rects"]["nbytes"], strict=True))
    return data


def cost_curve(trace: Trace, name: str = "", *, offload: Offload | None = None) -> Sweep:
    """Return what the trace costs under each budget, with the policies that runs and simulations have by default.

    With a tier, the default policy is there a second time, with it.
    """
    from remint.simulator import sweep

    def rows(policies: Sequence[str], tier: Offload | None) -> Sweep:
        return sweep(
            {name or "trace": trace},
            budgets=CURVE_BUDGETS,
            policies=policies,
            memory="arena",
            max_slowdown=CURVE_MAX_SLOWDOWN,
            offload=tier,
        )

    alone = rows(DEFAULT_POLICIES, None)
    if offload is None:
        return alone
    with_tier = [{**row, "policy": f"{row['policy']}, with offload"} for row in rows(DEFAULT_POLICIES[:1], offload)]
    return Sweep([*alone, *with_tier])


def sweep_data(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one chart per trace: slowdown against budget, a line per policy or planner."""
    traces: dict[str, dict[str, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        traces[row["trace"]][row["policy"]].append(row)
    charts = []
    for trace, policies in traces.items():
        percent = all(str(row["budget"]).endswith("%") for rows in policies.values() for row in rows)
        series = []
        foremost = next((policy for policy in DEFAULT_POLICIES if policy in policies), None)
        for policy, found in policies.items():
            points = sorted((_point(row, percent=percent) for row in found), key=lambda p: float(p["x"]))
            bad = [row for row in found if row["status"] != "ok"]
            last = max(bad, key=lambda row: int(row["budget_bytes"]), default=None)
            ends = "" if last is None else f"{last['status']} at {last['budget']}"
            named = {"name": policy, "planner": policy.startswith("plan: "), "prominent": policy == foremost}
            series.append({**named, "points": points, "ends": ends})
        sentence = _sweep_verdict(series, foremost, percent=percent)
        charts.append({"name": trace, "percent": percent, "series": series, "verdict": sentence})
    return charts


def _sweep_verdict(series: Sequence[Mapping[str, Any]], foremost: str | None, *, percent: bool) -> str:
    """Say how small a budget can be with the default policy, and which one needs least."""
    least = {}
    for each in series:
        worked = [point for point in each["points"] if point["slowdown"] is not None]
        if worked:
            least[each["name"]] = min(worked, key=lambda point: float(point["x"]))

    def at(name: str) -> str:
        point = least[name]
        size = f"{point['x']:g}% of the peak" if percent else format_bytes(point["budget"])
        return f"{size}: {slower(point['slowdown'])}"

    if not least:
        return "No policy and no planner works in these budgets."
    best = min(least, key=lambda name: (float(least[name]["x"]), least[name]["slowdown"]))
    if foremost is None or foremost not in least:
        return f"The smallest budget that works is that of {best}, {at(best)}."
    sentence = f"{foremost}, the default, works down to {at(foremost)}."
    return sentence if best == foremost else f"{sentence} The smallest, or quickest there: {best}, {at(best)}."


def _point(row: Mapping[str, Any], *, percent: bool) -> dict[str, Any]:
    return {
        "x": float(row["budget"].rstrip("%")) if percent else row["budget_bytes"],
        "slowdown": row["slowdown"] if row["status"] == "ok" else None,
        "peak": row["peak_bytes"],
        "budget": row["budget_bytes"],
        "times": row["num_rematerializations"],
    }


def _rectangles(run: Run) -> dict[str, Any]:
    assert run.blocks is not None
    rectangles = run.blocks.rectangles()
    left_out = max(0, len(rectangles) - MOST_BLOCKS)
    if left_out:
        rectangles.sort(key=lambda r: -(r.end - r.begin) * r.nbytes)
        del rectangles[MOST_BLOCKS:]
    # Later blocks are drawn over earlier ones.
    rectangles.sort(key=lambda r: r.begin)
    names = ("begin", "end", "address", "nbytes", "kind", "ending", "label", "storage")
    return {
        "rects": {name: [getattr(r, name) for r in rectangles] for name in names},
        "labels": [list(label) for label in run.blocks.labels],
        "left_out": left_out,
    }
