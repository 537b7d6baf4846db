"""The public face of the simulator: simulate, sweep, smallest_budget, and the Run they return."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

import remint
from remint import generators

pytestmark = pytest.mark.core

TRACE = generators.residual(8)


def test_without_pressure_nothing_is_made_again() -> None:
    for memory in ("ideal", "arena"):
        run = remint.simulate(TRACE, budget="200%", memory=memory)
        assert (run.status, run.slowdown, run.num_rematerializations, run.num_searches) == ("ok", 1.0, 0, 0)
        assert run.num_ops == TRACE.num_ops
        assert run.computed_seconds == pytest.approx(TRACE.seconds)


def test_a_budget_is_bytes_a_string_or_a_percentage_of_the_peak() -> None:
    for budget, nbytes in (
        ("50%", TRACE.peak_bytes // 2),
        (10**7, 10**7),
        ("10MB", 10**7),
        ("8MiB", 8 * 2**20),
    ):
        assert remint.simulate(TRACE, budget=budget).budget_bytes == nbytes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": "5x"}, "not understood"),
        ({"budget": -1}, "0 or more"),
        ({"budget": 1, "policy": "best"}, "the policies are dtr, dtr-eq"),
        ({"budget": 1, "policy": "coop"}, "needs memory='arena'"),
        ({"budget": 1, "policy": "dte"}, "needs memory='arena'"),
        ({"budget": 1, "memory": "heap"}, "one of 'ideal', 'arena'"),
        ({"budget": 1, "deallocation": "later"}, "one of 'ignore', 'lazy', 'eager', 'banish'"),
        ({"budget": 1, "inplace": "ghost"}, "needs memory='arena'"),
        ({"budget": 1, "max_slowdown": 0.5}, "1 or more"),
        ({"budget": 1, "ignore_small": 2.0}, "0 to 1"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_can(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        remint.simulate(TRACE, **options)  # type: ignore[arg-type]


def test_failures_are_results_that_say_where_and_why() -> None:
    run = remint.simulate(TRACE, budget=TRACE.min_budget_bytes - 1)
    assert run.status == "oom"
    assert run.failure is not None
    assert "no schedule can do with less than" in run.failure
    run = remint.simulate(TRACE, budget="40%", policy="lru", max_slowdown=1.01)
    assert run.status == "thrash"
    assert run.failure is not None
    assert "max_slowdown" in run.failure


def test_no_run_is_ok_below_the_lower_bound() -> None:
    for memory in ("ideal", "arena"):
        for policy in remint.policy_names(memory):
            run = remint.simulate(TRACE, budget=TRACE.min_budget_bytes - 64, policy=policy, memory=memory)
            assert run.status != "ok"


def test_the_timeline_shows_the_peak_and_ends_with_all_the_time() -> None:
    run = remint.simulate(TRACE, budget="50%")
    assert run.timeline is not None
    assert run.timeline.nbytes.max() <= run.peak_bytes <= run.budget_bytes
    assert run.timeline.seconds[-1] == pytest.approx(run.computed_seconds + run.rematerialized_seconds)
    assert (run.timeline.seconds[1:] >= run.timeline.seconds[:-1]).all()
    assert remint.simulate(TRACE, budget="50%", timeline=False).timeline is None


def test_events_are_counted_by_their_kind() -> None:
    run = remint.simulate(TRACE, budget="50%", events=True)
    assert run.events is not None
    kinds = [event[0] for event in run.events]
    num_constants = int((TRACE.kinds == remint.trace.events.CONSTANT).sum())
    assert kinds.count("C") == run.num_ops + num_constants
    assert kinds.count("R") == run.num_rematerializations
    assert kinds.count("E") == run.num_evictions + run.num_frees
    with pytest.raises(ValueError, match="events=True"):
        _ = remint.simulate(TRACE, budget="50%").decision_sha256


def test_a_run_prints_what_matters() -> None:
    text = str(remint.simulate(TRACE, budget="50%", policy="coop", memory="arena"))
    for word in ("coop on arena memory: ok", "peak", "slowdown", "evictions", "searches", "fragmentation"):
        assert word in text


def test_a_trace_can_be_given_as_a_file(tmp_path: Path) -> None:
    TRACE.save(tmp_path / "step.trace.gz")
    assert remint.simulate(tmp_path / "step.trace.gz", budget="50%") == remint.simulate(TRACE, budget="50%")


def test_a_sweep_has_a_row_for_every_case_in_order() -> None:
    traces = {"chain": generators.chain(32), "tree": generators.tree(3)}
    rows = remint.sweep(traces, budgets=["60%", "40%"], policies=["lru", "dtr"], jobs=2)
    cases = [(row["trace"], row["policy"], row["budget"]) for row in rows]
    assert cases == [(t, p, b) for t in ("chain", "tree") for p in ("lru", "dtr") for b in ("60%", "40%")]
    alone = remint.simulate(traces["tree"], budget="40%", policy="dtr").summary()
    for name, figure in alone.items():
        if name != "search_seconds":
            assert rows[-1][name] == figure
    assert json.loads(rows.to_json()) == list(rows)
    table = list(csv.DictReader(io.StringIO(rows.to_csv())))
    assert [row["status"] for row in table] == [row["status"] for row in rows]


def test_a_sweep_over_all_policies_takes_those_of_the_memory() -> None:
    for memory in ("ideal", "arena"):
        rows = remint.sweep(generators.chain(16), budgets=["80%"], memory=memory)
        assert [row["policy"] for row in rows] == list(remint.policy_names(memory))


def test_a_sweep_that_cannot_be_right_does_not_start() -> None:
    with pytest.raises(ValueError, match="not understood"):
        remint.sweep(TRACE, budgets=["50%", "5x"])
    with pytest.raises(ValueError, match="jobs"):
        remint.sweep(TRACE, jobs=0)
    with pytest.raises(ValueError, match="there is no policy"):
        remint.sweep(TRACE, policies=["best"])


def test_the_smallest_budget_works_and_the_next_smaller_does_not() -> None:
    smallest = remint.smallest_budget(TRACE, policy="dtr-eq")
    assert smallest is not None
    assert remint.simulate(TRACE, budget=smallest, policy="dtr-eq").status == "ok"
    step = TRACE.peak_bytes // 100 + 1
    assert remint.simulate(TRACE, budget=smallest - step, policy="dtr-eq").status != "ok"
    assert remint.smallest_budget(TRACE, policy="dtr-eq", max_slowdown=1.0) is not None
