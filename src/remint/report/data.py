"""What the page shows of each item, as plain data: page.js draws it and decides nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Protocol, TypeAlias

import numpy as np

from remint.graph import Compute, Plan
from remint.results import Sweep
from remint.results.advice import Advice, Choice
from remint.results.block_log import BlockLog
from remint.results.holders import Holder, peak_holders, shortened
from remint.results.run import RematerializedOp, Run, split_source
from remint.results.verdict import verdict
from remint.trace import Trace
from remint.units import format_bytes, format_seconds

MOST_BLOCKS = 40_000
MOST_POINTS = 20_000
MOST_ROWS = 20
MOST_HOLDERS = 10
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
        ],
    }
    return {
        "label": f"Which budget for {advice.subject}?",
        "verdict": advice.verdict(),
        "estimated": advice.estimated,
        "holders": _holders(advice.holders),
        "peak": advice.peak_bytes,
        "outside": [[holder.kind, holder.nbytes] for holder in advice.outside],
        "table": [list(row) for row in advice.table()],
        "proof": f"Nothing works below {format_bytes(advice.min_budget_bytes)}: {advice.min_budget_reason}.",
        "about": advice.about(used) if used is not None else "",
        "use": advice.how_to(used.budget_bytes) if used is not None else "",
        "chart": chart,
    }


def _advice_series(name: str, which: str, found: Mapping[int, Choice], *, prominent: bool) -> dict[str, Any]:
    points = [
        {"x": nbytes, "slowdown": getattr(found[nbytes], which), "peak": nbytes, "budget": nbytes, "times": None}
        for nbytes in sorted(found)
    ]
    return {"name": name, "planner": False, "prominent": prominent, "points": points, "ends": ""}


def _holders(holders: tuple[Holder, ...]) -> list[list[Any]]:
    return [
        [holder.kind, holder.where, holder.num_storages, holder.nbytes] for holder in shortened(holders, MOST_HOLDERS)
    ]


def _log_holders(log: BlockLog) -> list[list[Any]]:
    return _holders(peak_holders(log))


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
        **_again(run.rematerialized),
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
    if run.collective_seconds:
        data["collectives"] = run.collective_seconds
        data["cards"].append([format_seconds(run.collective_seconds), "in collectives, with waiting for other ranks"])
    if run.blocks is not None and len(run.blocks):
        line = run.blocks.memory()
        data["line"] = _line(line.seconds, line.resident, line.pinned, line.evicted)
        data["marks"] = [list(mark) for mark in run.blocks.marks()]
        data |= _rectangles(run)
        data["holders"] = _log_holders(run.blocks)
        data["end"] = float(line.seconds[-1])
    elif run.timeline is not None and len(run.timeline.seconds):
        data["line"] = _line(run.timeline.seconds, run.timeline.nbytes)
        data["end"] = float(run.timeline.seconds[-1])
    return data


def plan_data(plan: Plan, name: str = "") -> dict[str, Any]:
    """Return the figures, the memory over time and the schedule of a plan."""
    graph = plan.graph
    resident = dict(graph.constants)
    now = 0.0
    used = graph.constant_bytes
    times: list[float] = [0.0]
    nbytes: list[int] = [used]
    schedule: dict[str, list[Any]] = {"op": [], "begin": [], "end": [], "again": []}
    runs = [0] * len(graph.ops)
    marks: list[list[Any]] = []
    for step in plan.steps:
        if not isinstance(step, Compute):
            used -= resident.pop(step.value)
            nbytes.append(used)
            times.append(now)
            continue
        op = graph.ops[step.op]
        for value, size in op.outputs.items():
            used += size if value not in resident else 0
            resident[value] = size
        if not marks and op.source.startswith("backward of "):
            marks.append([now, "backward"])
        for column, entry in zip(schedule.values(), (step.op, now, now + op.cost, runs[step.op] > 0), strict=True):
            column.append(entry)
        times.append(now)
        nbytes.append(used)
        now += op.cost
        runs[step.op] += 1
    again = [
        RematerializedOp(op.name, op.source, count - 1, (count - 1) * op.cost, "")
        for op, count in zip(graph.ops, runs, strict=True)
        if count > 1
    ]
    label = f"plan by {plan.planner or 'hand'}"
    return {
        "type": "plan",
        "label": f"{name}: {label}" if name else label,
        "verdict": _plan_verdict(plan),
        "budget": None,
        "peak": plan.peak_bytes,
        "slowdown": 1 + plan.overhead,
        "times": sum(runs) - len(runs),
        "failure": None,
        "marks": marks,
        "line": _line(np.array(times), np.array(nbytes, dtype=np.int64)),
        "end": now,
        "schedule": schedule,
        "ops": [[op.name, op.source, op.cost] for op in graph.ops],
        **_again(sorted(again, key=lambda row: -row.seconds)),
        "cards": [
            [format_bytes(plan.peak_bytes), f"peak, {format_bytes(graph.peak_bytes)} without rematerialization"],
            [f"+{plan.overhead:.2%}", f"overhead, on {format_seconds(graph.cost)}"],
            ["optimal" if plan.optimal else f"{plan.gap:.2%}", "proven" if plan.optimal else "gap to the bound"],
            [f"{sum(runs) - len(runs):,}", f"rematerializations of {len(graph.ops):,} ops"],
            [format_seconds(plan.seconds), f"planning, by {plan.planner or 'hand'}"],
        ],
    }


def _plan_verdict(plan: Plan) -> str:
    need, peak = format_bytes(plan.graph.peak_bytes), format_bytes(plan.peak_bytes)
    if plan.peak_bytes >= plan.graph.peak_bytes:
        return f"Takes {peak}, as it is."
    proof = "no schedule is cheaper" if plan.optimal else f"at most {plan.gap:.1%} more than the cheapest schedule"
    return f"Fits {need} into {peak}; {plan.overhead:.1%} slower, {proof}."


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


def cost_curve(trace: Trace, name: str = "") -> Sweep:
    """Return what the trace costs under each budget, with the policies that runs and simulations have by default."""
    from remint.simulator import sweep

    return sweep(
        {name or "trace": trace},
        budgets=CURVE_BUDGETS,
        policies=DEFAULT_POLICIES,
        memory="arena",
        max_slowdown=CURVE_MAX_SLOWDOWN,
    )


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
        charts.append({"name": trace, "percent": percent, "series": series})
    return charts


def _point(row: Mapping[str, Any], *, percent: bool) -> dict[str, Any]:
    return {
        "x": float(row["budget"].rstrip("%")) if percent else row["budget_bytes"],
        "slowdown": row["slowdown"] if row["status"] == "ok" else None,
        "peak": row["peak_bytes"],
        "budget": row["budget_bytes"],
        "times": row["num_rematerializations"],
    }


def _again(rows: Sequence[RematerializedOp]) -> dict[str, Any]:
    return {
        "again": [[*row, *split_source(row.source)] for row in rows[:MOST_ROWS]],
        "again_seconds": sum(row.seconds for row in rows),
        "again_left_out": max(0, len(rows) - MOST_ROWS),
    }


def _line(seconds: Any, resident: Any, pinned: Any = None, evicted: Any = None) -> dict[str, Any]:
    """Return the columns; where there are too many points, the highest of each stretch stands for it."""
    take = np.arange(len(seconds))
    if len(take) > MOST_POINTS:
        stretches = np.array_split(take, MOST_POINTS)
        take = np.array([stretch[np.argmax(resident[stretch])] for stretch in stretches])
    columns = {"t": seconds, "resident": resident, "pinned": pinned, "evicted": evicted}
    return {name: None if column is None else column[take].tolist() for name, column in columns.items()}


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
