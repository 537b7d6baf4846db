"""DTR, exactly: the authors' simulator on four of their traces, decision by decision."""

from __future__ import annotations

import pytest

import remint
from tests.support.dtr_reference import (
    dtr_trace,
    needs_reference,
    reference_rows,
    row_deallocation,
    row_name,
    row_trace,
)


@needs_reference
def test_the_reference_is_complete():
    rows = reference_rows()
    assert len(rows) == 262
    assert {row["status"] for row in rows} == {"ok", "oom", "thrash"}


@needs_reference
@pytest.mark.parametrize("row", reference_rows(), ids=row_name)
def test_reproduces_the_authors_simulator(row):
    trace = row_trace(row)
    # What is dropped from a trace does not change its peak: that is taken with all releases.
    peak_bytes = dtr_trace(row["model"], releases=True).peak_bytes
    budget = int(peak_bytes * float(row["ratio"]))
    assert budget == int(row["budget_bytes"])
    assert int(trace.nanoseconds.sum()) == int(row["base_compute_ns"])
    run = remint.simulate(
        trace,
        budget=budget,
        policy=row["policy"],
        deallocation=row_deallocation(row),
        events=True,
        timeline=False,
    )
    assert run.status == row["status"]
    assert round(run.rematerialized_seconds * 1e9) == int(row["rematerialized_ns"])
    assert run.num_evictions == int(row["num_evictions"])
    assert run.num_rematerializations == int(row["num_rematerializations"])
    assert run.decision_sha256 == row["decision_sha256"]
    assert run.slowdown == pytest.approx(float(row["slowdown"]), abs=1e-9)
    assert run.peak_bytes <= budget
