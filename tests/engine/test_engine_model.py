"""The engine against the model of DTR's reference (`dtr_model`): the same events, one by one."""

from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import remint
from remint import generators
from remint.trace import Trace
from remint.trace.events import Call, View
from tests.support.dtr_model import POLICIES, Model
from tests.support.dtr_reference import (
    needs_reference,
    reference_rows,
    row_deallocation,
    row_name,
    row_trace,
)
from tests.support.examples import examples
from tests.support.random_programs import random_program
from tests.support.trace_strategies import traces

LIMITS = (1.0, 1.5, 2.0, 100.0)


def run_both(trace: Trace, budget: int, policy: str, deallocation: str, max_slowdown: float) -> Model:
    model = Model(
        budget,
        policy,
        eager=deallocation == "eager",
        max_rematerialized=int((max_slowdown - 1) * int(trace.nanoseconds.sum())),
    )
    status = model.run(trace)
    run = remint.simulate(
        trace,
        budget=budget,
        policy=policy,
        deallocation=deallocation,
        max_slowdown=max_slowdown,
        events=True,
        timeline=False,
    )
    assert list(run.events) == model.events
    assert run.status == status
    assert run.peak_bytes == model.peak
    assert run.num_evictions + run.num_frees == sum(event[0] == "E" for event in model.events)
    assert round(run.rematerialized_seconds * 1e9) == model.rematerialized
    return model


def tight_budget(trace: Trace, tightness: float) -> int:
    lowest = trace.min_budget_bytes
    return lowest + int((trace.peak_bytes - lowest) * (1 - tightness) ** 2)


def has_wide_views(trace: Trace) -> bool:
    """Whether a view reads tensors of other storages than its own.

    The authors' regions do not hear of the edges that such a view adds, and mostly end in an assertion. No
    view in their logs is of this kind, and ours may decide as they like.
    """
    return any(
        max(event.aliases, default=-1) >= 0 and len(set(event.args)) > 1
        for event in trace.events()
        if isinstance(event, Call | View)
    )


@pytest.mark.parametrize("policy", POLICIES)
@examples(120, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32),
    num_ops=st.integers(1, 80),
    tightness=st.floats(0, 1),
    views=st.sampled_from([0.0, 0.1, 0.3]),
    mutations=st.sampled_from([0.0, 0.1, 0.3]),
    deallocation=st.sampled_from(["eager", "ignore"]),
    max_slowdown=st.sampled_from(LIMITS),
)
def test_deep_programs(policy, seed, num_ops, tightness, views, mutations, deallocation, max_slowdown):
    trace = random_program(seed, num_ops, views=views, mutations=mutations)
    run_both(trace, tight_budget(trace, tightness), policy, deallocation, max_slowdown)


@examples(200, suppress_health_check=list(HealthCheck))
@given(
    trace=traces(),
    tightness=st.floats(0, 1),
    policy=st.sampled_from(POLICIES),
    deallocation=st.sampled_from(["eager", "ignore"]),
    max_slowdown=st.sampled_from(LIMITS),
)
def test_any_trace(trace, tightness, policy, deallocation, max_slowdown):
    if has_wide_views(trace) and policy in ("dtr", "msps"):
        policy = "dtr-eq"
    run_both(trace, tight_budget(trace, tightness), policy, deallocation, max_slowdown)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("percent", [70, 40, 20])
@pytest.mark.parametrize(
    "trace",
    [
        generators.random_dag(30, seed=1),
        generators.chain(60),
        generators.residual(4),
        generators.unet(2),
        generators.tree(3),
        generators.rnn(8),
    ],
    ids=["random_dag", "chain", "residual", "unet", "tree", "rnn"],
)
def test_networks(trace, percent, policy):
    budget = trace.min_budget_bytes + (trace.peak_bytes - trace.min_budget_bytes) * percent // 100
    for deallocation in ("eager", "ignore"):
        run_both(trace, budget, policy, deallocation, max_slowdown=3.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_programs_are_deep_enough(policy):
    """Evictions while ops wait for each other, and beside outputs that were never made, happen all the time."""
    waiting, pending, statuses = [], [], set()
    for seed in range(60):
        trace = random_program(seed, 80, views=0.2)
        model = Model(tight_budget(trace, random.Random(seed).random()), policy, max_rematerialized=10**9)
        statuses.add(model.run(trace))
        waiting.append(model.evictions_while_waiting)
        pending.append(model.evictions_beside_pending)
    assert statuses >= {"ok", "oom"}
    assert sum(count > 5 for count in waiting) >= 15
    assert sum(count > 5 for count in pending) >= 15


QUICK = {  # ratios at which the model is quick enough
    "resnet32": ("0.7", "0.4"),
    "unet": ("0.7", "0.4"),
    "transformer": ("0.5",),
    "lstm": ("0.5",),
}
SMALL_ROWS = [
    row
    for row in reference_rows()
    if row["ratio"] in QUICK[row["model"]]
    and (
        row["model"] in ("resnet32", "unet")
        or (row["policy"] in ("dtr-local", "lru", "size") and row["deallocation"] == "eager")
    )
]


def slow_if_long(row):
    return pytest.param(row, marks=pytest.mark.slow) if row["model"] == "lstm" else row


@needs_reference
@pytest.mark.parametrize("row", [slow_if_long(row) for row in SMALL_ROWS], ids=row_name)
def test_the_model_is_the_authors_simulator(row):
    """And the engine, too, which test_dtr_reference holds against all rows by their hashes."""
    trace = row_trace(row)
    model = run_both(trace, int(row["budget_bytes"]), row["policy"], row_deallocation(row), 2.0)
    decisions = "".join(f"{event};" for event in model.events)
    assert hashlib.sha256(decisions.encode()).hexdigest() == row["decision_sha256"]
