"""How the graphs of a step share its budget.

A step runs forward 1, forward 2, …, backward 2, backward 1. While run k is at work, the earlier runs hold what they
saved for their backwards; in its backward there are also the gradients of the later runs. So with S the bytes saved, F
and B the peaks of a forward and a backward alone, and G the gradients that a backward finds, run k needs

    S[1] + … + S[k-1] + max(F[k], B[k] + G[k])

and the peak of the step is the largest of these. Each run has several candidate plans with their own S, F, B and cost.
What matters of the first k choices is only the sum of S and the cost. So the best choices are found by dynamic
programming: a list of (sum, cost) in which no entry is worse than another in both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from remint.compiled.candidates import Candidate

# Entries of the list that stay per run. More would be exact to a finer grain of bytes.
MOST_ENTRIES = 400


@dataclass(frozen=True)
class Slot:
    """One run of a graph in the step: its candidate plans, and the gradients that its backward finds."""

    candidates: Sequence[Candidate]
    after: int = 0


def divide(slots: Sequence[Slot], budget: int) -> list[Candidate] | None:
    """Return a candidate per slot, of least cost in all, so that the step stays inside `budget`, or None."""
    # Per run, entries of (saved bytes so far, cost so far, entry of the run before, candidate).
    table: list[list[tuple[int, float, int, Candidate]]] = []
    entries: list[tuple[int, float]] = [(0, 0.0)]
    for slot in slots:
        reached = [
            (before + candidate.saved_bytes, cost + candidate.cost, place, candidate)
            for place, (before, cost) in enumerate(entries)
            for candidate in slot.candidates
            if candidate.peak_beside(before, slot.after) <= budget
        ]
        reached = _undominated(reached)
        if not reached:
            return None
        table.append(reached)
        entries = [(saved, cost) for saved, cost, _, _ in reached]
    chosen: list[Candidate] = []
    place = min(range(len(entries)), key=lambda entry: entries[entry][1])
    for reached in reversed(table):
        _, _, place, candidate = reached[place]
        chosen.append(candidate)
    return chosen[::-1]


def _undominated(
    reached: list[tuple[int, float, int, Candidate]],
) -> list[tuple[int, float, int, Candidate]]:
    reached.sort(key=lambda entry: entry[:2])
    undominated: list[tuple[int, float, int, Candidate]] = []
    cheapest = math.inf
    for entry in reached:
        if entry[1] < cheapest:
            cheapest = entry[1]
            undominated.append(entry)
    if len(undominated) <= MOST_ENTRIES:
        return undominated
    # The one that saves least stays, as what is feasible depends on it; of the others, those that are far apart.
    width = (undominated[-1][0] - undominated[0][0]) / (MOST_ENTRIES - 1)
    thinned = {math.ceil((entry[0] - undominated[0][0]) / width): entry for entry in undominated}
    return list(thinned.values())


def peak_of(slots: Sequence[Slot], chosen: Sequence[Candidate]) -> int:
    """Return the peak of the step with these choices."""
    before = peak = 0
    for slot, candidate in zip(slots, chosen, strict=True):
        peak = max(peak, candidate.peak_beside(before, slot.after))
        before += candidate.saved_bytes
    return peak


def least_budget(slots: Sequence[Slot]) -> int:
    """Return the smallest budget for which `divide` finds something."""
    high = peak_of(slots, [min(slot.candidates, key=lambda c: c.saved_bytes) for slot in slots])
    low = 0
    while low < high:
        middle = (low + high) // 2
        if first_unfitting(slots, middle)[0] == len(slots):
            high = middle
        else:
            low = middle + 1
    return high


def first_unfitting(slots: Sequence[Slot], budget: int) -> tuple[int, int]:
    """Return the first slot that no candidate fits, or their number if there is none, and what is saved before it.

    Of what fits, each slot takes the candidate that saves least: no other choice leaves more to later ones.
    """
    before = 0
    for place, slot in enumerate(slots):
        saved = [c.saved_bytes for c in slot.candidates if c.peak_beside(before, slot.after) <= budget]
        if not saved:
            return place, before
        before += min(saved)
    return len(slots), before


def limits_of(slots: Sequence[Slot], chosen: Sequence[Candidate], place: int) -> tuple[int, int]:
    """Return what the others leave to one run: bytes saved before it, and bytes that later runs need beside its own."""
    before = sum(candidate.saved_bytes for candidate in chosen[:place])
    return before, peak_of(slots[place + 1 :], chosen[place + 1 :])
