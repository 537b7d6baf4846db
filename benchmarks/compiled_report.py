"""The table and the figure of compiled.py."""

from __future__ import annotations

from typing import Any

from report import markdown, publish

MEBI = 2**20
STYLES = {
    "eager": ("black", "*"),
    "torch.utils.checkpoint": ("tab:green", "s"),
    "aot_eager": ("tab:orange", "^"),
    "remint online": ("tab:purple", "x"),
    "remint compiled": ("tab:blue", "o"),
}
TITLES = {"unet": "U-Net", "gpt": "GPT, 6 layers", "gpt12": "GPT, 12 layers"}


def report(results: dict[str, list[dict]]) -> None:
    """Publish the comparison with the peers, one table per model with what was predicted, and a figure."""
    parts = [_overview(results)]
    for name, rows in results.items():
        parts += [f"## {TITLES[name]}", _table(rows), _predictions(rows), _greedy(rows)]
    title = "Compiled plans and their peers: one training step"
    publish(title, "\n\n".join(parts), notes=NOTES, figure=figure(results), packages=["torch", "scipy"])


NOTES = """\
The first table: the time of the quickest compiled plan whose measured peak is at most that of the peer (to 0.1%, as the
heap also holds Python's own objects), over the peer's; and the lowest peak of a compiled plan that takes at most the
peer's time, over the peer's. Peak: heap above what was there before the step (the online path: its arena). Time: CPU
time of a step, the quickest of several taken in turns; "dp 1.0" and "ilp 1.0" run the same graph, so what they differ
by is noise. aot_eager is torch.compile with `activation_memory_budget`, its solver and its fraction. Of the compiled
path there is also what the plan says: its peak, and its cost over the cost of running every op once, beside the
measured time over that of the row with the largest budget, which runs every op once. The gap is what the plan's cost
can be above the optimum at most."""


def _best(row: dict) -> float:
    return min(row["seconds"])


def _unconstrained(rows: list[dict]) -> float:
    """The time of the compiled step that runs every op once."""
    return _best(max((row for row in rows if "ratio" in row), key=lambda row: row["budget"]))


def _table(rows: list[dict]) -> str:
    base, once = _best(rows[0]), _unconstrained(rows)
    cells = []
    for row in sorted(rows, key=lambda row: (list(STYLES).index(row["tool"]), -row["peak"])):
        planned = "ratio" in row
        cells.append(
            [
                row["tool"],
                row["setting"],
                f"{row['peak'] / MEBI:.1f}",
                f"{row['plan_peak'] / MEBI:.1f}" if planned else "",
                f"{_best(row) * 1e3:.0f}",
                f"{_best(row) / base:.3f}",
                f"{_best(row) / once:.3f}" if planned else "",
                f"{row['ratio']:.3f}" if planned else "",
                f"{_best(row) / once / row['ratio'] - 1:+.1%}" if planned else "",
                f"{row['gap']:.1%}" if planned else "",
            ]
        )
    headings = ["tool", "setting", "peak MiB", "predicted", "ms", "time/eager", "time/once", "predicted", "off", "gap"]
    return markdown(headings, cells)


def _overview(results: dict[str, list[dict]]) -> str:
    """At each peer's peak, and at each peer's time, for all models."""
    cells = {
        f"{row['tool']} {row['setting']}".strip(): []
        for rows in results.values()
        for row in rows
        if not row["tool"].startswith("remint")
    }
    for rows in results.values():
        planned = [row for row in rows if row["tool"] == "remint compiled"]
        for peer, line in cells.items():
            row = next((row for row in rows if f"{row['tool']} {row['setting']}".strip() == peer), None)
            if row is None:
                line += ["", ""]
                continue
            fits = [other for other in planned if other["peak"] <= row["peak"] * 1.001]
            quick = [other for other in planned if _best(other) <= _best(row)]
            line.append(f"{min(map(_best, fits)) / _best(row):.2f}" if fits else "-")
            line.append(f"{min(other['peak'] for other in quick) / row['peak']:.2f}" if quick else "-")
    headings = [f"{TITLES[name]}: {what}" for name in results for what in ("time", "peak")]
    lowest = [f"{min(row['peak'] for row in rows if 'ratio' in row) / _lowest(rows):.2f}" for rows in results.values()]
    last = ["lowest peak of all of them", *(cell for peak in lowest for cell in ("", peak))]
    return markdown(["peer", *headings], [*([peer, *line] for peer, line in cells.items()), last])


def _lowest(rows: list[dict]) -> int:
    return min(row["peak"] for row in rows if not row["tool"].startswith("remint"))


def _predictions(rows: list[dict]) -> str:
    planned = [row for row in rows if row["tool"] == "remint compiled"]
    once = _unconstrained(rows)
    time = max(abs(_best(row) / once / row["ratio"] - 1) for row in planned)
    peak = max(abs(row["peak"] / row["plan_peak"] - 1) for row in planned)
    over = max(row["peak"] - row["budget"] for row in planned)
    return (
        f"Predicted and measured differ by at most {time:.1%} (time over the unconstrained step) and {peak:.2%} "
        f"(peak); the heap is at most {max(0, over) / 1024:.0f} KiB above a budget, Python's own objects included."
    )


def _greedy(rows: list[dict]) -> str:
    """The online path beside the plan for the same budget."""
    planned = {row["budget"]: row for row in rows if row["tool"] == "remint compiled"}
    cells = [
        [row["setting"], f"{_best(row) * 1e3:.0f}", f"{_best(other) * 1e3:.0f}", f"{_best(row) / _best(other):.3f}"]
        for row in rows
        if row["tool"] == "remint online" and (other := planned.get(row["budget"]))
    ]
    return markdown(["budget", "online ms", "compiled ms", "online / compiled"], cells)


def figure(results: dict[str, list[dict]]) -> Any:
    """Draw memory against time, all tools on one picture per model."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawing, axes = pyplot.subplots(1, len(results), figsize=(5 * len(results), 4), squeeze=False)
    for axis, (name, rows) in zip(axes[0], results.items(), strict=True):
        for tool, (color, marker) in STYLES.items():
            points = sorted((row["peak"] / MEBI, _best(row) * 1e3) for row in rows if row["tool"] == tool)
            if points:
                line = "-" if tool == "remint compiled" else ""
                axis.plot(*zip(*points, strict=True), color=color, marker=marker, linestyle=line, label=tool)
        axis.set(title=TITLES[name], xlabel="peak, MiB", ylabel="CPU time of a step, ms")
        axis.set_xlim(left=0)
    axes[0][0].legend()
    drawing.tight_layout()
    return drawing
