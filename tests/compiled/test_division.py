"""Dividing a budget among the graphs of a step, against every possible choice."""

import itertools
import random

import pytest

from remint.compiled.candidates import Candidate, best_of
from remint.compiled.division import Slot, divide, least_budget, limits_of, peak_of


def random_slots(seed: int) -> list[Slot]:
    draw = random.Random(seed)

    def candidate(name: int) -> Candidate:
        saved = draw.randint(0, 40)
        return Candidate((name,), saved + draw.randint(0, 60), saved, draw.randint(10, 100), draw.uniform(1.0, 9.0))

    pools = [[candidate(10 * pool + name) for name in range(draw.randint(1, 4))] for pool in range(2)]
    return [Slot(draw.choice(pools), draw.randint(0, 30)) for _ in range(draw.randint(1, 5))]


def timeline_peak(slots, chosen) -> int:
    """Run the step: forwards in order, backwards in the opposite one."""
    held, peak = [], 0
    for candidate in chosen:
        peak = max(peak, sum(held) + candidate.forward_bytes)
        held.append(candidate.saved_bytes)
    for slot, candidate in zip(reversed(slots), reversed(chosen), strict=True):
        held.pop()
        peak = max(peak, sum(held) + candidate.backward_bytes + slot.after)
    return peak


@pytest.mark.parametrize("seed", range(60))
def test_the_best_division_of_all(seed):
    slots = random_slots(seed)
    choices = list(itertools.product(*(slot.candidates for slot in slots)))
    peaks = {choice: timeline_peak(slots, choice) for choice in choices}
    assert all(peak_of(slots, choice) == peak for choice, peak in peaks.items())
    least = min(peaks.values())
    assert least_budget(slots) == least
    assert divide(slots, least - 1) is None
    costs = []
    for budget in sorted({least, least + 7, least + 30, max(peaks.values())}):
        chosen = divide(slots, budget)
        assert timeline_peak(slots, chosen) <= budget
        cost = sum(c.cost for c in chosen)
        assert cost == pytest.approx(min(sum(c.cost for c in k) for k, peak in peaks.items() if peak <= budget))
        costs.append(cost)
    assert costs == sorted(costs, reverse=True)


@pytest.mark.parametrize("seed", range(10))
def test_what_the_others_leave(seed):
    slots = random_slots(seed)
    chosen = [slot.candidates[0] for slot in slots]
    for place in range(len(slots)):
        before, later = limits_of(slots, chosen, place)
        own = chosen[place]
        needed = max(own.peak_beside(before, slots[place].after), before + own.saved_bytes + later)
        assert max(needed, timeline_peak(slots[:place], chosen[:place])) == timeline_peak(slots, chosen)


def test_candidates_that_others_beat_are_left_out():
    good = Candidate((0,), 10, 5, 20, 1.0)
    worse = Candidate((1,), 10, 6, 20, 1.5)
    cheap = Candidate((2,), 30, 30, 40, 0.5)
    assert best_of([worse, cheap, good, good]) == [good, cheap]
