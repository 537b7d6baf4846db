"""The search for the largest size that fits."""

from __future__ import annotations

import pytest

from remint.results.largest_fit import Attempt, find_largest


@pytest.mark.parametrize("limit", [0, 1, 7, 8, 37, 99, 100, 500])
def test_the_search_is_exact_and_short(limit: int) -> None:
    tried: list[int] = []

    def attempt(size: int) -> Attempt:
        tried.append(size)
        return Attempt(size=size, fits=size <= limit, seconds=1.0)

    found = find_largest(attempt, range(1, 101), budget=1024)
    assert found.largest == (min(limit, 100) or None)
    assert len(tried) == len(set(tried)) <= 14
    assert found.budget_bytes == 1024


def test_mistakes_are_told() -> None:
    for sizes in ([], [0, 3], [3, 2]):
        with pytest.raises(ValueError, match="sizes"):
            find_largest(lambda size: Attempt(size=size, fits=True), sizes, budget=1)
