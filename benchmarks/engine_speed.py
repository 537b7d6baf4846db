"""How quick the engine is: ops without pressure, and searches among 100 to 100,000 candidates."""

from __future__ import annotations

import time

import remint
from remint.trace import Trace, TraceBuilder
from report import markdown, publish

CANDIDATES = (100, 1_000, 10_000, 100_000)


def long_chain(n: int) -> Trace:
    """N ops, each of which reads the one before and lets go of it."""
    builder = TraceBuilder()
    tensor = builder.constant(64)
    for _ in range(n):
        (after,) = builder.call("op", [tensor], [64], 1e-6)
        builder.release(tensor)
        tensor = after
    return builder.build()


def full_memory(candidates: int, evictions: int) -> Trace:
    """Fill memory with candidates that all differ in size, cost and age, then make `evictions` more."""
    builder = TraceBuilder()
    root = builder.constant(64)
    for i in range(candidates + evictions):
        # Odd multiples, so that sizes and costs vary but a request of the last phase always evicts about one storage.
        builder.call("op", [root], [64 * (1 + i * 7919 % 13)], 1e-6 * (1 + i * 104729 % 97))
    return builder.build(held=[])


def seconds_of(trace: Trace, **options: object) -> float:
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        run = remint.simulate(trace, timeline=False, max_slowdown=float("inf"), **options)  # type: ignore[arg-type]
        best = min(best, time.perf_counter() - started)
        assert run.status == "ok", run
    return best


def no_pressure() -> list[list[str]]:
    rows = []
    for n in (1_000, 10_000, 100_000, 1_000_000):
        trace = long_chain(n)
        row = [f"{n:,} ops, no pressure"]
        for memory, policy in (("ideal", "dtr-eq"), ("ideal", "lru"), ("arena", "coop")):
            seconds = seconds_of(trace, budget="200%", policy=policy, memory=memory)
            row.append(f"{n / seconds / 1e6:.2f}M ops/s")
        rows.append(row)
    return rows


def eviction_rows() -> list[list[str]]:
    rows = []
    for policy in remint.policy_names("arena"):
        memory = "arena" if policy in ("coop", "dte") else "ideal"
        row = [f"{policy} ({memory})"]
        for candidates in CANDIDATES:
            trace = full_memory(candidates, 100)
            # All but the last 100 fit.
            budget = full_memory(candidates, 0).peak_bytes
            run = remint.simulate(trace, budget=budget, policy=policy, memory=memory, timeline=False)
            assert run.status == "ok", run
            assert run.num_searches > 0
            row.append(f"{run.search_seconds / run.num_searches * 1e6:,.1f} µs")
        rows.append(row)
    return rows


def main() -> None:
    speed = markdown(["trace", "dtr-eq, ideal", "lru, ideal", "coop, arena"], no_pressure())
    searches = markdown(["time per search", *(f"{n:,} candidates" for n in CANDIDATES)], eviction_rows())
    notes = (
        "The mean of about 100 searches. `lru`, `size`, `msps` and `e-star` keep an index; building it is in the first."
    )
    publish("Speed of the engine", f"{speed}\n\n{searches}", notes=notes)


if __name__ == "__main__":
    main()
