"""DTR's theorem 3.1, and chains as deep as they come.

Theorem 3.1 is about a linear network of N layers, 2 N ops (forward and backward), all of unit size and cost,
under a budget of Omega(sqrt N): O(N) ops in all. Here N is the number of layers, the budget 2 sqrt(N) bytes
of one byte per activation, and the ops counted are all that ran, the 2 N of the program included: at most 4 N.
"""

from __future__ import annotations

import math

import pytest

import remint
from remint import generators
from remint.trace import Trace, TraceBuilder


def total_ops(n: int, policy: str, deallocation: str) -> int:
    trace = generators.chain(n, nbytes=1, seconds=1.0)
    assert trace.num_ops == 2 * n
    run = remint.simulate(
        trace,
        budget=2 * math.isqrt(n),
        policy=policy,
        deallocation=deallocation,
        max_slowdown=math.inf,
        timeline=False,
    )
    assert run.status == "ok"
    assert run.peak_bytes <= 2 * math.isqrt(n)
    return run.num_ops + run.num_rematerializations


@pytest.mark.parametrize("n", [64, 256, 1024, 4096])
@pytest.mark.parametrize(("policy", "deallocation"), [("e-star", "banish"), ("dtr-eq", "eager"), ("dtr-eq", "banish")])
def test_theorem_3_1(n, policy, deallocation):
    assert total_ops(n, policy, deallocation) <= 4 * n


@pytest.mark.parametrize("n", [64, 256, 1024])
def test_lru_is_not_linear(n):
    """It grows like n sqrt(n): it evicts what it has just made, and makes all of it again for each layer."""
    assert total_ops(n, "lru", "eager") > n * math.isqrt(n) / 2


def deep_chain(n: int) -> Trace:
    """A chain whose every value is released but the first reads of it: the end is made from the beginning."""
    builder = TraceBuilder()
    (x,) = builder.call("op", [], [64], 1e-6)
    kept = [x]
    for _ in range(n - 1):
        (x,) = builder.call("op", [x], [64], 1e-6)
        kept.append(x)
    # The last ones were made last: what is read here was evicted long ago, for most policies.
    builder.call("use", [kept[n // 2]], [64], 1e-6)
    builder.call("use", [kept[-1]], [64], 1e-6)
    return builder.build([x])


@pytest.mark.slow
@pytest.mark.parametrize("deallocation", ["eager", "ignore"])
@pytest.mark.parametrize(
    ("policy", "memory"),
    [("lru", "ideal"), ("dtr-eq", "ideal"), ("lru", "arena"), ("dtr-eq", "arena"), ("coop", "arena")],
)
def test_a_chain_of_100_000_ops(policy, memory, deallocation):
    run = remint.simulate(
        deep_chain(100_000),
        budget=64 * 40,
        policy=policy,
        memory=memory,
        deallocation=deallocation,
        max_depth=200_000,  # no limit: replay has to go all the way
        timeline=False,
    )
    assert run.status in ("ok", "thrash")
    assert run.num_ops >= 100_000
    assert run.peak_bytes <= 64 * 40
    if policy == "lru":
        # It kept nothing of the way to the middle, and had to go all of it again.
        assert run.num_rematerializations >= 49_000
