"""The largest size that fits in a budget: how it is searched for, and the result.

An attempt can be anything that takes a size: a step inside a budget, or a whole script in a process of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from remint.units import format_bytes, format_seconds, parse_budget


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One size that was tried."""

    size: int
    fits: bool
    seconds: float = 0.0
    peak_bytes: int = 0
    slowdown: float = 1.0
    num_rematerializations: int = 0
    failure: str | None = None

    @property
    def throughput(self) -> float:
        """Size per second."""
        return self.size / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The result of a search; attempts are in the order of their sizes."""

    budget_bytes: int
    attempts: tuple[Attempt, ...]

    @property
    def largest(self) -> int | None:
        """The largest size that fits, of those tried; None if none does."""
        return max((attempt.size for attempt in self.attempts if attempt.fits), default=None)

    @property
    def largest_without(self) -> int | None:
        """The largest size, of those tried, for which nothing had to be rematerialized."""
        free = [a.size for a in self.attempts if a.fits and a.num_rematerializations == 0]
        return max(free, default=None)

    def summary(self) -> dict[str, Any]:
        """Return the plain figures, for a file."""
        rows = [asdict(attempt) | {"throughput": attempt.throughput} for attempt in self.attempts]
        return {"largest": self.largest, "largest_without": self.largest_without, "budget_bytes": self.budget_bytes} | {
            "attempts": rows
        }

    def __str__(self) -> str:
        heading = (
            f"{'size':>8}  {'fits':4}  {'time':>9}  {'size/s':>9}  {'peak':>10}  {'slowdown':>8}  rematerializations"
        )
        lines = [heading]
        for a in self.attempts:
            if a.fits:
                lines.append(
                    f"{a.size:8}  yes   {format_seconds(a.seconds):>9}  {a.throughput:9.1f}  "
                    f"{format_bytes(a.peak_bytes):>10}  {a.slowdown:7.2f}x  {a.num_rematerializations:,}"
                )
            else:
                lines.append(f"{a.size:8}  no")
        found = "nothing fits" if self.largest is None else f"the largest that fits is {self.largest}"
        without = self.largest_without
        lines.append(
            f"{format_bytes(self.budget_bytes)}: {found}"
            + ("" if without is None else f"; without rematerialization {without}, of those tried")
        )
        return "\n".join(lines)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw throughput and slowdown against size; needs matplotlib."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ValueError("a plot needs matplotlib: pip install matplotlib") from error
        fits = [a for a in self.attempts if a.fits]
        figure = Figure(figsize=(6.4, 4), layout="constrained")
        axes = figure.subplots()
        axes.plot([a.size for a in fits], [a.throughput for a in fits], "o-", color="#4a86e8", label="fits")
        for a in self.attempts:
            if not a.fits:
                axes.axvline(a.size, color="#d5322d", lw=0.8, ls=":")
        if self.largest_without is not None:
            axes.axvline(self.largest_without, color="gray", ls="--", label="largest without rematerialization")
        axes.set_xlabel("size (dotted red: does not fit)")
        axes.set_ylabel("size per second")
        axes.set_ylim(bottom=0)
        axes.set_title(f"inside {format_bytes(self.budget_bytes)}")
        axes.legend()
        figure.savefig(Path(path), dpi=150)


def find_largest(
    attempt: Callable[[int], Attempt],
    sizes: Sequence[int],
    *,
    budget: int | str,
    progress: Callable[[Attempt], object] | None = None,
) -> Fit:
    """Double the size until one does not fit, then halve the gap.

    The search assumes that nothing larger than a size that does not fit can fit. For greedy policies that is nearly
    always true.

    >>> result = find_largest(lambda n: Attempt(size=n, fits=n <= 37), range(8, 513), budget="1GiB")
    >>> result.largest, [a.size for a in result.attempts]
    (37, [8, 16, 32, 36, 37, 38, 40, 48, 64])
    """
    if len(sizes) == 0 or any(size < 1 for size in (sizes[0], sizes[-1])):
        raise ValueError("sizes are whole numbers, 1 or more, and at least one of them")
    if any(a >= b for a, b in pairwise(sizes)):
        raise ValueError("sizes go up: sort them")
    done: dict[int, Attempt] = {}

    def fits(index: int) -> bool:
        tried = done[index] = attempt(sizes[index])
        if progress is not None:
            progress(tried)
        return tried.fits

    low, high = -1, len(sizes)  # sizes[low] fits, sizes[high] does not
    index = 0
    while fits(index):
        low = index
        if low == len(sizes) - 1:
            break
        # The first candidate of at least twice the size.
        index = next((i for i in range(low + 1, len(sizes)) if sizes[i] >= 2 * sizes[low]), len(sizes) - 1)
    else:
        high = index
    while low + 1 < high:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    ordered = tuple(done[index] for index in sorted(done))
    return Fit(budget_bytes=parse_budget(budget), attempts=ordered)
