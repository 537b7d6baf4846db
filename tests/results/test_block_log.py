"""The block log against what must hold for any arena, whatever the policy did."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from remint import Run, TraceBuilder, generators, policy_names, simulate
from remint.results.block_log import BlockLog, Rectangle
from remint.trace import Trace

pytestmark = pytest.mark.core

TRACES = {"unet": generators.unet(3), "rnn": generators.rnn(12), "chain": generators.chain(40)}


def logged(trace: Trace, policy: str, budget: str = "60%") -> Run:
    run = simulate(trace, budget=budget, policy=policy, memory="arena", blocks=True, events=True)
    assert run.blocks is not None
    return run


def there(rectangles: list[Rectangle]) -> list[Rectangle]:
    return [r for r in rectangles if r.kind != "evicted"]


@pytest.mark.parametrize("policy", policy_names("arena"))
@pytest.mark.parametrize("name", TRACES)
def test_blocks_never_overlap_and_stay_inside_the_budget(name: str, policy: str) -> None:
    run = logged(TRACES[name], policy)
    rectangles = there(run.blocks.rectangles())
    assert rectangles
    assert all(r.address >= 0 and r.address + r.nbytes <= run.budget_bytes for r in rectangles)
    for at in np.linspace(0, max(r.end for r in rectangles), 60, endpoint=False):
        now = sorted((r.address, r.nbytes) for r in rectangles if r.begin <= at < r.end)
        assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(now))


@pytest.mark.parametrize("policy", policy_names("arena"))
def test_the_log_counts_what_the_engine_counts(policy: str) -> None:
    run = logged(TRACES["unet"], policy)
    changes = run.blocks.changes
    dropped = sum(n > 0 for c, n in zip(changes, run.blocks.nbytes, strict=True) if c in "ELD")
    views = sum(1 for event in run.events if event[0] == "E")
    assert dropped <= run.num_evictions == views
    memory = run.blocks.memory()
    assert memory.resident.max() == run.peak_bytes
    assert (memory.pinned >= 0).all()
    assert (memory.pinned <= memory.resident).all()
    assert (memory.evicted >= 0).all()
    if run.status == "ok":
        assert memory.resident[-1] == memory.pinned[-1], "at the end, all that is left is what the program holds"


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
