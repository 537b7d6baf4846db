"""The 262 runs of DTR's own simulator, on one core: are they equal, and how long do they take?

The authors' simulator took 521 s for them on a machine like this one. The traces are test data beside the project.
"""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path

import remint
from report import markdown, publish

DATA = Path(__file__).resolve().parents[2] / "shared" / "dtr"
REFERENCE_SECONDS = 521


def main() -> None:
    if not DATA.is_dir():
        sys.exit(f"no DTR traces at {DATA}: nothing to compare with")
    with (DATA / "reference.csv").open() as file:
        rows = list(csv.DictReader(file))
    started = time.perf_counter()
    traces = {}
    for row in rows:
        releases = row["deallocation"] != "releases-dropped"
        key = (row["model"], releases)
        if key not in traces:
            traces[key] = remint.Trace.from_dtr_log(DATA / f"{row['model']}.log.gz", releases=releases)
    reading = time.perf_counter() - started
    by_policy: dict[str, list[float]] = {}
    equal: dict[str, int] = {}
    for row in rows:
        started = time.perf_counter()
        run = remint.simulate(
            traces[row["model"], row["deallocation"] != "releases-dropped"],
            budget=int(row["budget_bytes"]),
            policy=row["policy"],
            deallocation="ignore" if row["deallocation"] == "ignore" else "eager",
            events=True,
            timeline=False,
        )
        by_policy.setdefault(row["policy"], []).append(time.perf_counter() - started)
        equal[row["policy"]] = equal.get(row["policy"], 0) + (run.decision_sha256 == row["decision_sha256"])
    total = sum(map(sum, by_policy.values()))
    table = [
        [policy, str(len(times)), str(equal[policy]), f"{sum(times):.2f} s", f"{max(times) * 1e3:.0f} ms"]
        for policy, times in by_policy.items()
    ]
    table.append(["all", str(len(rows)), str(sum(equal.values())), f"{total:.2f} s", ""])
    publish(
        "DTR's reference, 262 runs on one core",
        markdown(["policy", "runs", "equal decisions", "time", "slowest"], table),
        notes=f"Reading the traces took {reading:.2f} s more. The authors' simulator: {REFERENCE_SECONDS} s, "
        f"{REFERENCE_SECONDS / (total + reading):.0f} times as long.",
    )


if __name__ == "__main__":
    main()
