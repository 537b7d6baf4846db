"""Random programs give the same bits with everything evicted after every op, and in a budget nearly too small."""

import pytest
import torch
from hypothesis import given, strategies

import remint
from tests.support.random_tensors import programs, run, same

pytestmark = pytest.mark.runtime

# Costs do not come from the clock: the same example does the same every time.
COSTS = [1e-6] * 10_000


def constants():
    torch.manual_seed(1)
    return [torch.randn(9, 9), torch.randn(25, requires_grad=True)]


def plain(program):
    return run(program, constants())


def assert_same(expected, found):
    assert len(expected) == len(found)
    for place, (a, b) in enumerate(zip(expected, found, strict=True)):
        assert same(a, b), (place, a, b)


@given(programs)
def test_chaos(program):
    expected, outside = plain(program), constants()
    with remint.budget("2GiB", chaos=True, check=True, costs=COSTS) as run_:
        found = run(program, outside)
    assert run_.peak_bytes <= run_.budget_bytes
    assert_same(expected, found)


@given(programs, strategies.sampled_from(["coop", "dtr-eq", "lru", "e-star"]), strategies.integers(20, 160))
def test_nearly_too_small(program, policy, blocks):
    expected, outside = plain(program), constants()
    try:
        with remint.budget(64 * blocks, policy=policy, check=True, costs=COSTS) as run_:
            found = run(program, outside)
    except remint.BudgetError:
        return
    assert run_.peak_bytes <= run_.budget_bytes
    assert_same(expected, found)


@given(programs, strategies.sampled_from(["1kB", "100MB", "1TB"]))
def test_chaos_with_a_tier(program, bandwidth):
    """Everything leaves after every op; the bandwidth says which way, and what no recipe makes has only one."""
    expected, outside = plain(program), constants()
    offload = remint.Offload(bytes="1GiB", bandwidth=bandwidth, latency=0)
    with remint.budget("2GiB", chaos=True, check=True, costs=COSTS, offload=offload):
        found = run(program, outside)
    assert_same(expected, found)


@given(
    programs,
    strategies.sampled_from(["coop", "dtr-eq", "lru", "e-star"]),
    strategies.integers(20, 160),
    strategies.sampled_from([4096 * 4, 1 << 30]),
)
def test_nearly_too_small_with_a_tier(program, policy, blocks, nbytes):
    expected, outside = plain(program), constants()
    offload = remint.Offload(bytes=nbytes, bandwidth="1GB", latency=0)
    try:
        with remint.budget(64 * blocks, policy=policy, check=True, costs=COSTS, offload=offload) as run_:
            found = run(program, outside)
    except remint.BudgetError:
        return
    assert run_.peak_bytes <= run_.budget_bytes
    assert_same(expected, found)
