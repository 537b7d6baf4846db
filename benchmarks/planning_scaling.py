"""How planning time grows with the graph: python benchmarks/planning_scaling.py -o scaling.svg

Residual networks of 100 to 20,000 ops at 50%: when the first plan is there, when one within 1% of the last,
and what gap is certified in the time given.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from remint import Graph, generators, plan
from remint.planners import Progress

BLOCKS = (7, 36, 71, 178, 357, 714, 1428)


def measure(blocks: int, name: str, limit: float) -> dict[str, float]:
    graph = Graph.from_trace(generators.residual(blocks))
    seen: list[Progress] = []
    made = plan(graph, "50%", name, limit, progress=seen.append)
    costs = [(p.seconds, p.cost) for p in seen if p.cost is not None] or [(made.seconds, made.cost)]
    good = next((t for t, c in costs if c <= made.cost * 1.01), made.seconds)
    return {
        "ops": len(graph.ops),
        "first": costs[0][0],
        "good": good,
        "seconds": made.seconds,
        "overhead": made.overhead,
        "gap": made.gap,
    }


def svg(curves: dict[str, list[tuple[float, float]]]) -> str:
    width, height, edge = 640, 400, 50
    points = [p for curve in curves.values() for p in curve]
    left, right = math.log10(min(x for x, _ in points)), math.log10(max(x for x, _ in points))
    low, high = math.log10(max(1e-3, min(y for _, y in points))), math.log10(max(y for _, y in points))

    def place(x: float, y: float) -> str:
        across = edge + (math.log10(x) - left) / max(right - left, 1e-9) * (width - 2 * edge)
        up = height - edge - (math.log10(max(y, 1e-3)) - low) / max(high - low, 1e-9) * (height - 2 * edge)
        return f"{across:.1f},{up:.1f}"

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">']
    colours = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0")
    for place_in, (name, curve) in enumerate(curves.items()):
        colour = colours[place_in % 4]
        line = " ".join(place(x, y) for x, y in curve)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{line}"/>')
        parts.append(f'<text x="{edge + 8}" y="{edge + 16 * place_in}" fill="{colour}" font-size="13">{name}</text>')
    for x, _ in next(iter(curves.values())):
        across = place(x, 10**low).split(",")[0]
        parts.append(f'<text x="{across}" y="{height - edge + 18}" font-size="11" text-anchor="middle">{x:.0f}</text>')
    for power in range(math.ceil(low), math.floor(high) + 1):
        up = place(10**left, 10**power).split(",")[1]
        parts.append(f'<text x="{edge - 6}" y="{up}" font-size="11" text-anchor="end">{10**power:g} s</text>')
    parts.append(f'<text x="{width / 2}" y="{height - 10}" font-size="12" text-anchor="middle">ops</text></svg>')
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path, default=Path("scaling.svg"))
    parser.add_argument("--limit", type=float, default=60)
    options = parser.parse_args()
    curves: dict[str, list[tuple[float, float]]] = {}
    for name in ("search", "auto"):
        for blocks in BLOCKS:
            row = measure(blocks, name, options.limit)
            print(name, " ".join(f"{k} {v:.4g}" for k, v in row.items()), flush=True)
            curves.setdefault(f"{name}: first plan", []).append((row["ops"], row["first"]))
            curves.setdefault(f"{name}: within 1% of its last", []).append((row["ops"], row["good"]))
    options.output.write_text(svg(curves))


if __name__ == "__main__":
    main()
