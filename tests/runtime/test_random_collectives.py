"""Random programs of collectives on two ranks have the same bits in a budget, whatever each rank evicts."""

import pytest
import torch
import torch.distributed as dist

import remint

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")

PROGRAMS, ALL_PROGRAMS, BATCH = 120, 1000, 40
# Tensors have up to 16 KiB, and a replay needs some of them at once between those that a collective keeps in place.
TIGHT_BYTES = 64 << 10
# What a rank does; with "tight", what does not fit goes elsewhere, so that no rank fails alone.
WAYS = {
    "chaos": {"budget": "16MiB", "chaos": True},
    "roomy": {"budget": "16MiB"},
    "tight": {"overflow": "spill", "max_slowdown": None},
}


def same(a, b):
    return a.shape == b.shape and torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


def programs(rank, first, count):
    from tests.support.random_collectives import run

    totals = {"evicted": 0, "again": 0}
    for seed in range(first, first + count):
        (expected, _), *_ = [([t.clone() for t in tensors], p) for tensors, p in run(seed, rank, evicts=False)]
        # Ranks differ in what they do, too.
        way = list(WAYS)[(seed // (1 + 2 * rank)) % len(WAYS)]
        options = {"learn": False, "check": True, **WAYS[way]}
        if way == "tight":
            options["budget"] = max(TIGHT_BYTES, sum(t.numel() * 4 for t in expected) // 2)
        dist.barrier()
        with remint.budget(**options) as budget:
            program = run(seed, rank, evicts=way != "tight")
            found, state = next(program)
            for k, (a, b) in enumerate(zip(expected, found, strict=True)):
                assert same(a, b), (seed, way, "inside", k, state.log)
        for k, (a, b) in enumerate(zip(expected, found, strict=True)):
            assert same(a, b), (seed, way, "after", k, state.log)
        totals["evicted"] += state.num_evicted
        totals["again"] += budget.num_rematerializations
        assert budget.peak_bytes <= budget.budget_bytes
        del found, state, program
    assert totals["evicted"] > count
    assert totals["again"] > count
    print(first, count, totals)


def pytest_generate_tests(metafunc):
    count = ALL_PROGRAMS if metafunc.config.getoption("everything") else PROGRAMS
    metafunc.parametrize("first", range(0, count, BATCH))


def test_random_programs_of_collectives(ranks, first):
    ranks.run(programs, first=first, count=BATCH)
