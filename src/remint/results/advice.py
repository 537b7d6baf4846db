"""Advice: how much memory a step takes, which budgets it can train in, and what each of them costs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from textwrap import wrap
from typing import Any

from remint.notebook import as_html
from remint.results.holders import Holder, shortened
from remint.units import budget_text, format_bytes, format_seconds

MOST_HOLDERS = 8
WIDTH = 80


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A budget, and how many times longer a step takes in it. None: it does not fit."""

    budget_bytes: int
    greedy: float | None
    """The first steps, when only the past is known."""
    learned: float | None
    """The steps from then on."""
    offload: float | None = None
    """All steps, with the tier that was asked about."""

    @property
    def best(self) -> float | None:
        """The steps from then on, with the tier if that is quicker."""
        times = [each for each in (self.learned, self.offload) if each is not None]
        return min(times, default=None)

    @property
    def uses_tier(self) -> bool:
        """Whether the tier makes it quicker, or possible."""
        return self.offload is not None and self.offload == self.best


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Steps that were really run in a budget."""

    budget_bytes: int
    num_steps: int
    slowdown: float | None
    """Of the last ones; None if they did not fit."""
    is_learned: bool = True
    """Whether the last ones were learned. If not, the trial reached its limit before, and later steps may be faster."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The answer of `remint.advise` and `remint advise`; `print` it, or write it as a page with `report`."""

    subject: str
    """What was looked at: a script with its arguments, or the name of a function."""
    is_script: bool
    """Whether the whole program is inside the budget. If not, its weights are made outside and do not count."""
    step_seconds: float
    peak_bytes: int
    """What a step takes without a budget."""
    holders: tuple[Holder, ...]
    """What holds memory at the peak, the largest first."""
    outside: tuple[Holder, ...]
    """What the program holds and the budget does not count."""
    min_budget_bytes: int
    """No schedule of the same ops can do with less."""
    min_budget_reason: str
    least: Choice | None
    """The smallest budget for which a way was found."""
    choices: tuple[Choice, ...]
    """From the largest budget to the smallest."""
    recommended: Choice | None
    accepted: float
    """The recommended budget is the smallest one that is at most so many times slower than plain, or the quickest."""
    asked: Choice | None = None
    """The budget that was asked about."""
    trial: Trial | None = None
    """Of the recommended budget."""
    estimated: str = ""
    """If nothing was run: how the figures were estimated."""
    offload: str = ""
    """The tier that was asked about, as `--offload` takes it."""
    bandwidth: float | None = None
    """Bytes per second of this tier, as measured."""

    @property
    def fits(self) -> bool | None:
        """Whether the step fits in the budget that was asked about; None if none was."""
        return None if self.asked is None else self.asked.best is not None

    @property
    def used(self) -> Choice | None:
        """The budget to use: the one that was asked about, if the step needs one and fits in it; or the recommended."""
        if self.asked is not None and self.fits:
            return self.asked if self.asked.budget_bytes < self.peak_bytes else None
        return self.recommended

    def verdict(self) -> str:
        """Return the answer in one or two sentences."""
        subject = self.subject if self.is_script else f"{self.subject}()"
        need = f"{subject} takes {format_bytes(self.peak_bytes)} and {format_seconds(self.step_seconds)} per step."
        if self.asked is not None:
            return f"{need} {self._about_asked()}"
        if self.recommended is None:
            return f"{need} No smaller budget was found that works."
        part = self.recommended.budget_bytes / self.peak_bytes
        return f"{need} In {budget_text(self.recommended.budget_bytes)} ({part:.0%}) it is {_cost(self.recommended)}."

    def how_to(self, used: Choice) -> str:
        """Return the command or the lines of code that train inside a budget."""
        text = budget_text(used.budget_bytes)
        if self.is_script:
            tier = f" --offload {shlex.quote(self.offload)}" if used.uses_tier else ""
            return f"remint run --budget {text}{tier} {self.subject}"
        tier = f', offload="{self.offload}"' if used.uses_tier else ""
        return f'with remint.budget("{text}"{tier}):  # around the training loop\n    {self.subject}()'

    def summary(self) -> dict[str, Any]:
        """Return all figures as plain data."""
        data = asdict(self)
        for name in ("holders", "outside"):
            data[name] = [holder._asdict() for holder in getattr(self, name)]
        used = self.used
        return {
            "format": "remint.advice",
            **data,
            "fits": self.fits,
            "verdict": self.verdict(),
            "use": self.how_to(used) if used is not None else None,
        }

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write a page with the peak, the holders and the memory-time curve: one HTML file, which works offline."""
        from remint.report import write_html

        write_html(path, [self])

    def headings(self) -> list[str]:
        """Return the headings of the table."""
        tier = ["with offload"] if self.offload else []
        return ["budget", "of peak", "first steps", "then", *tier, ""]

    def table(self) -> Iterator[tuple[str, ...]]:
        """Return the rows budget, percent of the peak, greedy, learned, remark, from the largest budget on.

        With a tier, what steps take with it stands before the remark.
        """
        # Budgets that are written in the same way are one row.
        rows = {
            budget_text(found.budget_bytes): found
            for found in (*self.choices, self.least, self.recommended, self.asked)
            if found and found.budget_bytes < self.peak_bytes  # else nothing is saved
        }
        for text, found in sorted(rows.items(), key=lambda row: -row[1].budget_bytes):
            remarks = [
                remark
                for remark, other in (
                    ("asked for", self.asked),
                    ("recommended", self.recommended),
                    ("the least" if self.offload else "the least that works", self.least),
                )
                if other is not None and budget_text(other.budget_bytes) == text
            ]
            times = [found.greedy, found.learned, *([found.offload] if self.offload else [])]
            cells = [f"{each:.2f}x" if each is not None else "no" for each in times]
            yield text, f"{found.budget_bytes / self.peak_bytes:.0%}", *cells, ", ".join(remarks)

    def __str__(self) -> str:
        lines = _wrapped(self.verdict())
        if self.estimated:
            lines += _wrapped(f"Estimated: {self.estimated}.")
        lines += ["", f"At the peak, {format_bytes(self.peak_bytes)} are held by"]
        for holder in shortened(self.holders, MOST_HOLDERS):
            lines.append(_holder_line(holder, self.peak_bytes))
        if self.outside:
            total = sum(holder.nbytes for holder in self.outside)
            kinds = ", ".join(f"{holder.kind} {format_bytes(holder.nbytes)}" for holder in self.outside)
            lines += _wrapped(f"Outside of the budget: {format_bytes(total)} ({kinds}).")
        widths = (10, 7, 11, 6, 12)
        rows = list(self.table())
        if rows:
            lines.append("")
        for row in (self.headings(), *rows) if rows else ():
            cells = [f"{cell:>{width}}" for cell, width in zip(row[:-1], widths, strict=False)]
            lines.append("  ".join([*cells, row[-1]]).rstrip())
        if self.offload and self.bandwidth:
            lines += _wrapped(f"The tier moves {format_bytes(self.bandwidth)} per second, as measured.")
        nothing = f"Nothing works below {format_bytes(self.min_budget_bytes)}: {self.min_budget_reason}."
        lines += ["", *_wrapped(nothing)]
        used = self.used
        if used is not None:
            lines += [
                "",
                *_wrapped(f"Use it: {self.about(used)}"),
                *(f"    {line}" for line in self.how_to(used).split("\n")),
            ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return as_html(self.verdict(), self.headings(), self.table())

    def about(self, used: Choice) -> str:
        """Return what is known of one of the budgets."""
        part = used.budget_bytes / self.peak_bytes
        about = f"{budget_text(used.budget_bytes)} is {part:.0%} of the peak, {_cost(used)}."
        if self.trial is not None and self.trial.budget_bytes == used.budget_bytes:
            if self.trial.slowdown is None:
                about += f" But {self.trial.num_steps} steps were tried, and did not fit: take more."
            elif self.trial.is_learned:
                about += f" {self.trial.num_steps} steps were tried: {slower(self.trial.slowdown)}."
            else:
                about += (
                    f" {self.trial.num_steps} steps were tried, and it still learns them: "
                    f"{slower(self.trial.slowdown)} so far."
                )
        return about

    def _about_asked(self) -> str:
        assert self.asked is not None
        budget = budget_text(self.asked.budget_bytes)
        if self.asked.budget_bytes >= self.peak_bytes:
            return f"It fits in {budget} as it is."
        if self.asked.best is not None:
            return f"It fits in {budget}: {_cost(self.asked)}."
        if self.asked.budget_bytes < self.min_budget_bytes:
            return f"It does not fit in {budget}, whatever is recomputed: {self.min_budget_reason}."
        more = "" if self.least is None else f" The least that works is {budget_text(self.least.budget_bytes)}."
        return f"It does not fit in {budget}: no way was found.{more}"


def _cost(choice: Choice) -> str:
    return f"{slower(choice.best)}, with offloading" if choice.uses_tier else slower(choice.best)


def slower(times: float | None) -> str:
    """Return how much longer a step takes.

    >>> slower(1.15), slower(3.52), slower(0.98), slower(None)
    ('15% slower', '3.5 times as slow', 'as fast', 'too slow, or too small')
    """
    if times is None:
        return "too slow, or too small"
    if times < 1.005:
        return "as fast"
    return f"{times - 1:.0%} slower" if times < 2 else f"{times:.1f} times as slow"


def _wrapped(text: str) -> list[str]:
    return wrap(text, WIDTH, break_on_hyphens=False, break_long_words=False)


def _holder_line(holder: Holder, peak: int) -> str:
    size = f"{format_bytes(holder.nbytes):>10}  {holder.nbytes / peak:>4.0%}" if peak else format_bytes(holder.nbytes)
    several = holder.where and holder.num_storages > 1
    where = f"{holder.where} ({holder.num_storages:,})" if several else holder.where
    room = WIDTH - 2 - 16 - 1 - len(size)
    if len(where) > room:
        where = f"…{where[1 - room :]}"
    return f"  {holder.kind:16} {where:{room}}{size}"
