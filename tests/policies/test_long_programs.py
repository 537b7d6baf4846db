"""Work per search does not grow with the program, and what is found is about as good. Counts, no times."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remint import _core, generators
from remint.trace import Trace, TraceBuilder
from tests.support.examples import examples
from tests.support.random_programs import random_program

pytestmark = pytest.mark.core

# Short ops: a look at all blocks would take longer than they do.
SHORT: dict[str, Any] = {"nbytes": 2**15, "seconds": 1e-5}
# The most blocks that are all looked at between ops that take no time.
FEW_BLOCKS = 256


def simulate(trace: Trace, percent: int, **options: Any) -> _core.Simulation:
    options = {"policy": "coop", **options}
    run = _core.Simulation(budget=trace.peak_bytes * percent // 100, arena=True, ghosts=True, events=True, **options)
    assert run.advance(trace, finish=True) == "ok"
    return run


def scores_per_search(run: _core.Simulation) -> float:
    figures = run.statistics()
    return figures["num_scores"] / figures["num_searches"]


def slowdown(run: _core.Simulation) -> float:
    figures = run.statistics()
    return 1 + figures["rematerialized_ns"] / figures["computed_ns"]


def mixed(n: int, seed: int) -> Trace:
    """Values of many sizes and costs, read again at random; most are released at some time, some are pinned."""
    rng = random.Random(seed)
    builder = TraceBuilder()
    live = [builder.constant(64)]
    for _ in range(n):
        reads = rng.sample(live, min(len(live), 2))
        live += builder.call("op", reads, [64 * rng.choice((1, 3, 8, 40))], 1e-6 * rng.choice((1, 5, 50)))
        if len(live) > n // 2:
            builder.release(live.pop(rng.randrange(len(live))))
    return builder.build(held=live[-3:])


def test_a_search_looks_at_as_many_blocks_however_many_there_are():
    short, long = (simulate(generators.chain(n, **SHORT), 50) for n in (4_000, 32_000))
    assert scores_per_search(short) < FEW_BLOCKS
    assert scores_per_search(long) < 1.5 * scores_per_search(short)


def test_where_ops_take_long_all_blocks_are_looked_at():
    trace = generators.random_dag(600, seed=2)
    few, all_ = (simulate(trace, 30, windows=windows) for windows in ("few", "all"))
    assert few.decisions() == all_.decisions()
    assert scores_per_search(few) == scores_per_search(all_)


@examples(100)
@given(
    trace=st.builds(random_program, st.integers(0, 2**32), st.integers(1, 60), mutations=st.sampled_from([0.0, 0.3])),
    percent=st.integers(60, 100),
)
def test_few_blocks_are_all_looked_at(trace, percent):
    runs = []
    for windows in ("few", "all"):
        run = _core.Simulation(
            budget=64 * trace.peak_bytes * percent // 100,
            arena=True,
            ghosts=True,
            events=True,
            policy="coop",
            windows=windows,
        )
        runs.append((run.advance(trace, finish=True), run.decisions()))
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("trace", "mean"),
    [
        (generators.chain(4_000, **SHORT), 1.1),
        (generators.tree(8, **SHORT), 2.0),
        (generators.rnn(400, **SHORT), 2.0),
    ],
    ids=["chain", "tree", "rnn"],
)
def test_windows_are_nearly_the_cheapest(trace, mean):
    run = simulate(trace, 50, windows="compared")
    figures = run.statistics()
    assert figures["num_compared_windows"] > 100
    assert figures["num_cheapest_windows"] > figures["num_compared_windows"] / 2
    assert figures["window_cost_ratio"] < mean
    assert slowdown(run) < 1.02 * slowdown(simulate(trace, 50, windows="all"))


@examples(12)
@given(seed=st.integers(0, 2**32), percent=st.sampled_from([50, 70, 90]))
def test_the_books_agree_among_many_blocks(seed, percent):
    trace = mixed(1_500, seed)
    run = _core.Simulation(budget=trace.peak_bytes * percent // 100, arena=True, ghosts=True, policy="coop", check=True)
    assert run.advance(trace, finish=True) == "ok"
    figures = run.statistics()
    assert figures["num_searches"] > 0
    assert figures["peak_bytes"] <= trace.peak_bytes * percent // 100


def test_a_run_is_repeatable():
    trace = mixed(3_000, 1)
    assert simulate(trace, 60).decisions() == simulate(trace, 60).decisions()


def test_a_hundred_thousand_ops():
    trace = generators.chain(50_000, **SHORT)
    run = simulate(trace, 50)
    assert run.statistics()["num_ops"] == 100_000
    assert slowdown(run) < 1.4


def test_the_clairvoyant_policy_scores_as_many_candidates_however_many_there_are():
    options = {"policy": "clairvoyant", "deallocation": "lazy"}
    short, long = (simulate(generators.chain(n, **SHORT), 50, **options) for n in (1_000, 16_000))
    assert scores_per_search(long) < 2 * scores_per_search(short) < 100


@examples(100)
@given(
    trace=st.builds(random_program, st.integers(0, 2**32), st.integers(1, 60), mutations=st.sampled_from([0.0, 0.3])),
    percent=st.integers(60, 100),
)
@example(trace=random_program(4_000_000, 33, mutations=0.3), percent=60)  # old names of bytes that were written since
def test_the_clairvoyant_policy_evicts_what_it_would_if_it_scored_all(trace, percent):
    runs = []
    for windows in ("few", "all"):
        run = _core.Simulation(
            budget=64 * trace.peak_bytes * percent // 100,
            arena=True,
            ghosts=True,
            events=True,
            policy="clairvoyant",
            windows=windows,
        )
        runs.append((run.advance(trace, finish=True), run.decisions()))
    assert runs[0] == runs[1]
