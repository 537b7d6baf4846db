"""The block log against what must hold for any arena, whatever the policy did."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from remint import Offload, Run, TraceBuilder, generators, policy_names, simulate
from remint.results.block_log import AWAY, BlockLog, Rectangle
from remint.trace import Trace

pytestmark = pytest.mark.core

TRACES = {"unet": generators.unet(3), "rnn": generators.rnn(12), "chain": generators.chain(40)}


TIERS = {"no tier": None, "slow tier": Offload(bytes="1GiB", bandwidth="1kB"), "quick tier": Offload(bytes="1GiB")}


def logged(trace: Trace, policy: str, budget: str = "60%", offload: Offload | None = None) -> Run:
    run = simulate(trace, budget=budget, policy=policy, memory="arena", offload=offload, blocks=True, events=True)
    assert run.blocks is not None
    return run


def there(rectangles: list[Rectangle]) -> list[Rectangle]:
    return [r for r in rectangles if r.kind not in AWAY]


@pytest.mark.parametrize("policy", policy_names("arena"))
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", TRACES)
def test_blocks_never_overlap_and_stay_inside_the_budget(name: str, tier: str, policy: str) -> None:
    run = logged(TRACES[name], policy, offload=TIERS[tier])
    rectangles = there(run.blocks.rectangles())
    assert rectangles
    assert all(r.address >= 0 and r.address + r.nbytes <= run.budget_bytes for r in rectangles)
    for at in np.linspace(0, max(r.end for r in rectangles), 60, endpoint=False):
        now = sorted((r.address, r.nbytes) for r in rectangles if r.begin <= at < r.end)
        assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(now))


@pytest.mark.parametrize("policy", policy_names("arena"))
@pytest.mark.parametrize("tier", TIERS)
def test_the_log_counts_what_the_engine_counts(tier: str, policy: str) -> None:
    run = logged(TRACES["unet"], policy, offload=TIERS[tier])
    changes = run.blocks.changes
    dropped = sum(n > 0 for c, n in zip(changes, run.blocks.nbytes, strict=True) if c in "ELD")
    views = sum(1 for event in run.events if event[0] == "E")
    assert dropped <= run.num_evictions + run.num_frees == views
    evicted = sum(n > 0 for c, n in zip(changes, run.blocks.nbytes, strict=True) if c == "E")
    assert evicted == run.num_evictions
    memory = run.blocks.memory()
    assert memory.resident.max() == run.peak_bytes
    assert (memory.pinned >= 0).all()
    assert (memory.pinned <= memory.resident).all()
    assert (memory.evicted >= 0).all()
    assert (memory.offloaded >= 0).all()
    transfers = run.blocks.transfers()
    assert sum(transfer.leaves for transfer in transfers) == run.num_offloads + run.num_clean_offloads
    assert sum(not transfer.leaves for transfer in transfers) == run.num_fetches
    assert memory.offloaded.max() <= run.offload_peak_bytes
    again = sum(r.kind == "again" for r in run.blocks.rectangles())
    assert again <= run.num_rematerializations + run.num_frees, "what was fetched was not recomputed"
    if run.status == "ok":
        assert memory.resident[-1] == memory.pinned[-1], "at the end, all that is left is what the program holds"


def test_a_pinned_tensor_is_pinned_again_when_it_comes_back() -> None:
    builder = TraceBuilder()
    weight = builder.constant(1024)
    (a,) = builder.call("a", [], [1024], 1.0, source="net.py:7")
    builder.release(a)
    builder.call("b", [weight], [0], 1.0)
    run = logged(builder.build(), "lru", "1KiB", Offload(bytes="1MiB"))
    leaves, comes_back = run.blocks.transfers()
    assert (leaves.leaves, comes_back.leaves) == (True, False)
    assert leaves.was_pinned
    assert leaves.seconds < comes_back.seconds
    kinds = [(r.kind, r.ending) for r in run.blocks.rectangles() if r.storage == 0]
    assert kinds == [("pinned", "offloaded"), ("offloaded", "fetched"), ("pinned", "end")]


def test_a_copy_that_is_given_up_is_evicted() -> None:
    times, slots = np.arange(5.0), np.zeros(5, np.int64)
    sizes = np.array([64, 64, 64, 0, 64])
    log = BlockLog(times, "ACOEC", np.array([-1, 0, 0, 0, 0]), slots, slots, sizes, (("op", ""),))
    kinds = [(r.kind, r.ending) for r in log.rectangles()]
    assert kinds == [
        ("first", "offloaded"),
        ("offloaded", "dropped"),
        ("evicted", "rematerialized"),
        ("again", "end"),
    ]


def test_logging_changes_no_decision() -> None:
    plain = simulate(TRACES["unet"], budget="50%", policy="coop", memory="arena", events=True)
    run = logged(TRACES["unet"], "coop", "50%")
    assert plain == run
    assert plain.blocks is None


def test_without_pressure_nothing_is_evicted_and_scratch_is_seen() -> None:
    builder = TraceBuilder()
    weight = builder.constant(64, "weight")
    (a,) = builder.call(
        "conv", [weight], [128], 1.0, requests=[("allocate", 256), ("allocate", 128, 0), ("free", 0)], source="net.py:3"
    )
    builder.mark("backward")
    builder.release(a)
    run = logged(builder.build(), "lru", "1KiB")
    kinds = {r.kind: r for r in run.blocks.rectangles()}
    assert set(kinds) == {"pinned", "first", "scratch"}
    assert kinds["scratch"].nbytes == 256
    assert run.blocks.labels[kinds["first"].label] == ("conv", "net.py:3")
    assert [name for _, name in run.blocks.marks()] == ["backward"]


def test_ideal_memory_has_no_blocks() -> None:
    with pytest.raises(ValueError, match="needs memory='arena'"):
        simulate(TRACES["chain"], budget="50%", blocks=True)


def test_rematerializations_are_explained() -> None:
    run = logged(TRACES["chain"], "lru", "50%")
    assert sum(row.times for row in run.rematerialized) == run.num_rematerializations
    assert sum(row.seconds for row in run.rematerialized) == pytest.approx(run.rematerialized_seconds)
    assert all(row.why for row in run.rematerialized)


def test_bytes_of_no_op_are_seen_until_the_end() -> None:
    times, none = np.array([0.0, 1.0, 2.0]), np.full(3, -1)
    log = BlockLog(times, "AAF", none, none, np.array([0, 64, 0]), np.array([64, 128, 64]), ())
    gone, kept = log.rectangles()
    assert (gone.address, gone.ending) == (0, "freed")
    assert (kept.address, kept.nbytes, kept.ending) == (64, 128, "end")
    assert log.memory().resident.tolist()[-1] == 128


def test_what_the_program_released_is_not_missing() -> None:
    builder = TraceBuilder()
    weight = builder.constant(64)
    (a,) = builder.call("a", [weight], [512], 1.0)
    (b,) = builder.call("b", [a], [512], 1.0)
    (c,) = builder.call("c", [b], [512], 1.0)
    (d,) = builder.call("d", [c], [512], 1.0)  # evicts a
    builder.release(a)
    (e,) = builder.call("e", [d], [512], 1.0)  # evicts b
    builder.release(c)
    builder.release(d)
    builder.call("f", [b], [0], 1.0)  # a and then b again
    builder.release(e)
    run = simulate(builder.build(), budget=3 * 512 + 64, policy="lru", memory="arena", blocks=True)
    assert run.status == "ok"
    names = [label.name for label in run.blocks.labels]
    gone = [(names[r.label], r.ending) for r in run.blocks.rectangles() if r.kind == "evicted"]
    assert gone[0] == ("a", "released")
    assert [name for name, _ in gone].count("a") == 1
    assert ("b", "rematerialized") in gone
