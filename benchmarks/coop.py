"""Coop's point: the same arena, with and without eviction that knows addresses.

Slowdown and fragmentation at 70, 50 and 30% of each trace's peak, search time, and the smallest budget at which
each policy still completes (in steps of 1% of the peak, slowdown at most 2), beside DTR on ideal memory, which no
real memory is.
"""

from __future__ import annotations

import argparse

import remint
from remint import Trace
from report import markdown, publish
from traces import all_traces

BUDGETS = ("70%", "50%", "30%")
CASES: dict[str, dict[str, object]] = {
    "coop": {"policy": "coop", "memory": "arena"},
    "dtr-eq": {"policy": "dtr-eq", "memory": "arena", "moving": False},
    "dte": {"policy": "dte", "memory": "arena", "moving": False},
    "dtr-eq, ideal": {"policy": "dtr-eq", "memory": "ideal"},
}
# What each of coop's parts is good for.
PARTS: dict[str, dict[str, object]] = {
    "coop": {"policy": "coop", "memory": "arena"},
    "without partition": {"policy": "coop", "memory": "arena", "partition": False},
    "without moving": {"policy": "coop", "memory": "arena", "moving": False},
    "with copies for in-place": {"policy": "coop", "memory": "arena", "inplace": "copy"},
}


def row_of(name: str, trace: Trace, case: str, options: dict[str, object]) -> list[str]:
    cells = [name, case]
    searches, seconds = 0, 0.0
    for budget in BUDGETS:
        run = remint.simulate(trace, budget=budget, timeline=False, **options)  # type: ignore[arg-type]
        cells.append(f"{run.slowdown:.3f}x" if run.status == "ok" else run.status)
        if options["memory"] == "arena":
            cells[-1] += f" / {run.fragmentation:.1%}"
        searches += run.num_searches
        seconds += run.search_seconds
    cells.append(f"{seconds / max(searches, 1) * 1e6:.1f} µs x {searches:,}")
    smallest = remint.smallest_budget(trace, **options)  # type: ignore[arg-type]
    cells.append("none" if smallest is None else f"{smallest / trace.peak_bytes:.0%}")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", action="store_true", help="take coop apart instead of comparing it")
    cases = PARTS if parser.parse_args().parts else CASES
    rows = [
        row_of(name, trace, case, options) for name, trace in all_traces().items() for case, options in cases.items()
    ]
    headings = [
        "trace",
        "policy",
        *(f"slowdown / fragmentation at {b}" for b in BUDGETS),
        "searches",
        "smallest budget",
    ]
    publish("Coop's point: eviction that knows addresses", markdown(headings, rows))


if __name__ == "__main__":
    main()
