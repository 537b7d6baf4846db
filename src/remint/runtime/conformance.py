"""What `remint doctor --device NAME` checks: whether budgets keep their promises on one device.

It is meant for people with hardware that remint was not tested on. The checks need nothing but PyTorch, and their
result is plain data that can be attached to a report.
"""

from __future__ import annotations

import itertools
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from remint import torch_extension
from remint.runtime import operator_samples as samples
from remint.runtime.budget import budget
from remint.runtime.tensor_functions import evict, materialize
from remint.units import format_bytes, format_seconds
from remint.version import __version__


class Check(NamedTuple):
    """The result of one check. `ok` is None where nothing can be right or wrong: a measurement, or no answer."""

    what: str
    ok: bool | None
    found: str
    figures: dict[str, Any]


def about(device: str) -> dict[str, Any]:
    """Return what a reader of the results has to know about the machine."""
    kind = torch.device(device).type
    name = torch.cuda.get_device_name(device) if kind == "cuda" else platform.processor() or platform.machine()
    return {
        "remint": __version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device,
        "device_name": name,
    }


def conformance(device: str, *, most_samples: int | None = None) -> Iterator[Check]:
    """Run the checks, one after the other; with all samples of each operator of PyTorch's database, or so many.

    >>> checks = {check.what: check for check in conformance("cpu", most_samples=0)}
    >>> checks["bits"].ok, checks["wall"].ok
    (True, True)
    """
    device = torch_extension.device_name(device)
    # A device without budgets is an error before anything is checked.
    with budget("1MiB", device=device):
        pass
    checks: list[tuple[str, Callable[[str], Check]]] = [
        ("bits", _bits),
        ("bits without deterministic algorithms", _bits_by_default),
        ("operators under chaos", lambda device: _operators(device, most_samples)),
        ("wall", _wall),
        ("streams", _streams),
        ("overhead", _overhead),
        ("events", _events),
        ("bandwidth", _bandwidth),
    ]
    for what, check in checks:
        try:
            yield check(device)
        except Exception as error:
            yield Check(what, False, f"{type(error).__name__}: {error}", {})


# ── Bits ──


def _train(device: str, **options: Any) -> tuple[list[torch.Tensor], int, int]:
    """Train a small network with everything that is hard to repeat; return all numbers, the peak, and the replays."""
    torch.manual_seed(0)
    nn = torch.nn
    blocks = [[nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.1)] for _ in range(6)]
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *itertools.chain(*blocks), nn.Flatten(), nn.LazyLinear(10))
    model(torch.zeros(2, 3, 16, 16))
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []

    def steps() -> None:
        torch.manual_seed(1)
        for _ in range(5):
            optimizer.zero_grad()
            x = torch.randn(32, 3, 16, 16, device=device)
            y = torch.randint(10, (32,), device=device)
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.detach().cpu())

    peak = replays = 0
    if options:
        with budget(device=device, **options) as run:
            steps()
        peak, replays = run.peak_bytes, run.num_rematerializations
    else:
        steps()
    numbers = [*losses, *(p.detach().cpu() for p in model.parameters())]
    return numbers + [b.cpu() for b in model.buffers()], peak, replays


def _differing(a: list[torch.Tensor], b: list[torch.Tensor]) -> int:
    return sum(not torch.equal(x, y) for x, y in zip(a, b, strict=True))


@contextmanager
def _deterministic(on: bool) -> Iterator[None]:
    before, warn = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(on, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn)


def _compare(device: str) -> tuple[int, int, dict[str, Any]]:
    plain = _train(device)[0]
    again = _train(device)[0]
    roomy, peak, _ = _train(device, budget="512MiB")
    figures: dict[str, Any] = {"peak_bytes": peak, "differ_without_a_budget": _differing(plain, again)}
    worst = figures["differ_roomy"] = _differing(plain, roomy)
    replays = 0
    for percent in (70, 50):
        tight, _, replays = _train(device, budget=peak * percent // 100, max_slowdown=None)
        figures[f"differ_at_{percent}"] = _differing(plain, tight)
        figures[f"replays_at_{percent}"] = replays
        worst = max(worst, figures[f"differ_at_{percent}"])
    return worst, replays, figures


def _bits(device: str) -> Check:
    with _deterministic(True):
        worst, replays, figures = _compare(device)
    noise = figures["differ_without_a_budget"]
    if noise:
        return Check(
            "bits", None, f"{noise} numbers differ between two runs without a budget: nothing to compare", figures
        )
    if worst or not replays:
        return Check("bits", False, f"{worst} tensors differ in a budget, {replays} ops ran again", figures)
    return Check("bits", True, f"the same at 70 and 50% of {format_bytes(figures['peak_bytes'])}", figures)


def _bits_by_default(device: str) -> Check:
    with _deterministic(False):
        worst, _, figures = _compare(device)
    noise = figures["differ_without_a_budget"]
    found = f"{worst} tensors differ in a budget, {noise} between two runs without one"
    # Kernels that differ by themselves are no mistake of a budget.
    return Check("bits without deterministic algorithms", None if noise else worst == 0, found, figures)


# ── Operators ──


def _operators(device: str, most: int | None) -> Check:
    what = "operators under chaos"
    try:
        known = samples.operators()
    except ImportError as error:
        return Check(what, None, f"PyTorch's operator database needs {error.name}: pip install {error.name}", {})
    different, refused, noisy, tried, evicting = [], [], [], 0, 0
    for op in known:
        name = f"{op.name} {op.variant_test_name}".strip()
        for tree in samples.samples_of(op, most):
            try:
                expected = [samples.to_host(samples.outcome(op, *samples.copied(tree, device))) for _ in range(2)]
            except Exception as error:
                refused.append(f"{name}: {type(error).__name__}")
                continue
            if not samples.all_same(*expected):
                noisy.append(name)
                continue
            inputs = samples.copied(tree, device)
            try:
                with budget("64MiB", device=device, chaos=True) as run:
                    found = samples.to_host(samples.outcome(op, *inputs))
            except Exception as error:
                different.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
                continue
            tried += 1
            evicting += run.num_evictions > 0
            if not samples.all_same(expected[0], found):
                different.append(name)
    figures = {
        "operators": len(known),
        "samples": tried,
        "evicting": evicting,
        "different": different,
        "not_the_same_twice": noisy,
        "not_supported": refused,
    }
    found_text = (
        f"{tried} samples, {evicting} with evictions: {len(different)} differ; {len(noisy)} differ without a budget, "
        f"{len(refused)} do not run there"
    )
    return Check(what, None if tried + len(different) == 0 else not different, found_text, figures)


# ── Memory ──


def _free_memory(device: str) -> int | None:
    if torch.device(device).type == "cpu":
        return None
    torch.accelerator.synchronize(device)
    torch.accelerator.empty_cache()
    return int(torch.accelerator.get_memory_info(device)[0])


def _wall(device: str) -> Check:
    nbytes, size = 64 << 20, 1 << 20
    before = _free_memory(device)
    base = torch.ones(size, device=device)
    least = before
    with budget(nbytes, device=device, learn=False, max_slowdown=None) as run:
        made = []
        for k in range(64):
            made.append(base * k)
            free = _free_memory(device) if k % 16 == 15 else None
            least = free if free is not None and least is not None and free < least else least
        right = all(bool((tensor == k).all()) for k, tensor in enumerate(made))
        del made
    figures: dict[str, Any] = {"budget_bytes": nbytes, "peak_bytes": run.peak_bytes, "evictions": run.num_evictions}
    ok = right and run.peak_bytes <= nbytes and run.num_evictions > 0
    found = f"256 MiB of tensors in {format_bytes(nbytes)}: peak {format_bytes(run.peak_bytes)}"
    if before is not None and least is not None:
        taken = figures["taken_from_device_bytes"] = before - least
        # What stands beside the arena: `base`, numbers, and what the device's allocator rounds up to.
        ok = ok and taken <= nbytes + base.nbytes + (24 << 20)
        found += f", {format_bytes(taken)} taken from the device"
    return Check("wall", ok, found, figures)


# ── Streams ──


def _streams(device: str) -> Check:
    if torch.device(device).type == "cpu":
        return Check("streams", None, "the CPU has none", {})
    size, wrong, runs, replays = 1 << 16, 0, 20, 0
    main, side = torch.accelerator.current_stream(device), torch.Stream(device)
    base = torch.arange(float(size), device=device)
    expected = base.cpu()
    for _ in range(runs):
        with budget(6 * base.nbytes, device=device, learn=False, max_slowdown=None) as run:
            x = base * 2
            side.wait_stream(main)
            with side:
                for _ in range(20):
                    base.sum()
                y = x + 1.0
            more = [base * k for k in range(8)]
            evict(x)
            with side:
                z = x + 3.0
            again = x + 5.0
            main.wait_stream(side)
            for tensor, value in ((y, expected * 2 + 1), (z, expected * 2 + 3), (again, expected * 2 + 5)):
                wrong += not torch.equal(tensor.cpu(), value)
            wrong += sum(not torch.equal(tensor.cpu(), expected * k) for k, tensor in enumerate(more))
            replays += run.num_rematerializations
    found = f"{runs} programs on two streams, {replays} replays: {wrong} wrong tensors"
    return Check("streams", wrong == 0 and replays > 0, found, {"runs": runs, "replays": replays, "wrong": wrong})


# ── Costs: measurements, not promises ──


def _synchronize(device: str) -> None:
    if torch.device(device).type != "cpu":
        torch.accelerator.synchronize(device)


def _seconds(device: str, work: Callable[[], object], times: int) -> float:
    work()
    _synchronize(device)
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(times):
            work()
        _synchronize(device)
        best = min(best, (time.perf_counter() - began) / times)
    return best


def _overhead(device: str) -> Check:
    x = torch.ones(64, device=device)
    plain = _seconds(device, lambda: x + 1, 300)
    with budget("64MiB", device=device, learn=False):
        inside = _seconds(device, lambda: x + 1, 300)
    figures = {"plain_seconds": plain, "inside_seconds": inside}
    found = f"{format_seconds(inside - plain)} per op ({format_seconds(plain)} without a budget)"
    return Check("overhead", None, found, figures)


def _events(device: str) -> Check:
    if torch.device(device).type == "cpu":
        return Check("events", None, "the CPU has none", {})
    stream, other = torch.accelerator.current_stream(device), torch.Stream(device)
    event = torch.Event(device, enable_timing=True)

    def record() -> None:
        event.record(stream)
        event.wait(other)

    seconds = _seconds(device, record, 300)
    return Check(
        "events", None, f"{format_seconds(seconds)} to record one and have a stream wait", {"seconds": seconds}
    )


def _bandwidth(device: str) -> Check:
    nbytes = 16 << 20
    host, here = torch.ones(nbytes // 4), torch.ones(nbytes // 4, device=device)
    there, back = torch.empty_like(here), torch.empty_like(host)
    figures = {
        "copy_bytes_per_second": nbytes / _seconds(device, lambda: there.copy_(here), 10),
        "from_host_bytes_per_second": nbytes / _seconds(device, lambda: there.copy_(host), 10),
        "to_host_bytes_per_second": nbytes / _seconds(device, lambda: back.copy_(here), 10),
    }
    with budget(4 * nbytes, device=device, learn=False):
        x = here * 2

        def replay() -> None:
            evict(x)
            materialize(x)

        figures["replay_bytes_per_second"] = nbytes / _seconds(device, replay, 5)
    figures["move_bytes_per_second"] = max(_move_bandwidth(device, nbytes // 8) for _ in range(5))
    found = ", ".join(
        f"{name.split('_bytes')[0].replace('_', ' ')} {value / 1e9:.2f} GB/s" for name, value in figures.items()
    )
    return Check("bandwidth", None, found, figures)


def _move_bandwidth(device: str, nbytes: int) -> float:
    """Return the bytes per second of moves within the arena."""
    size = nbytes // 4
    with budget(7 * nbytes, device=device, learn=False) as run:
        # Memory that no op has filled cannot be recomputed: what is kept of it can only be moved.
        kept = {i: torch.empty(size, device=device).fill_(i) for i in range(7)}
        for tensor in kept.values():
            tensor.requires_grad_().sum()
        for i in (1, 3, 5):
            del kept[i]
        _synchronize(device)
        began = time.perf_counter()
        wide = torch.empty(2 * size, device=device)  # there are three holes of half its size
        _synchronize(device)
        seconds = time.perf_counter() - began
        moved = run.moved_bytes
        del wide, kept
    if not moved:
        raise RuntimeError("nothing was moved")
    return moved / seconds
