from __future__ import annotations

import doctest
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import remint.units
from remint.units import format_bytes, format_seconds, parse_budget


@pytest.mark.parametrize(
    ("budget", "nbytes"),
    [
        (0, 0),
        (1536, 1536),
        (1536.9, 1536),
        ("1536", 1536),
        ("1536B", 1536),
        ("1.5KiB", 1536),
        ("1.5 k", 1536),
        (" 2GiB ", 2 * 2**30),
        ("2G", 2 * 2**30),
        ("2gb", 2 * 10**9),
        ("1500MB", 1_500_000_000),
        (".5MiB", 2**19),
        ("3.TiB", 3 * 2**40),
        # Larger than a double can count: whole numbers stay exact.
        ("9007199254740993", 9007199254740993),
    ],
)
def test_parse_budget(budget: int | float | str, nbytes: int) -> None:
    assert parse_budget(budget) == nbytes


@pytest.mark.parametrize(
    ("budget", "nbytes"), [("50%", 1500), ("12.5 %", 375), ("100%", 3001), ("0%", 0), ("2KB", 2000), (7, 7)]
)
def test_parse_budget_with_a_peak(budget: int | float | str, nbytes: int) -> None:
    assert parse_budget(budget, peak_bytes=3001) == nbytes


@given(st.integers(0, 2**62))
def test_all_of_a_peak_is_the_peak(peak_bytes: int) -> None:
    assert parse_budget("100%", peak_bytes=peak_bytes) == peak_bytes


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ("", "is not understood"),
        ("GiB", "is not understood"),
        ("2 GiBs", "is not understood: write bytes"),
        ("-2GiB", "is not understood"),
        ("1e9", "is not understood"),
        ("2,5GiB", "is not understood"),
        ("50%", "is a percentage, but the peak .* is not known here: give bytes"),
        (-1, "0 or more"),
        (float("nan"), "0 or more"),
        (float("inf"), "0 or more"),
        (True, "a budget is bytes"),
        (None, "a budget is bytes"),
        (b"2GiB", "a budget is bytes"),
    ],
)
def test_bad_budgets(budget: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        parse_budget(budget)
    assert repr(budget) in str(error.value)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (-1536, "-1.5 KiB"),
        (268435456, "256.0 MiB"),
        (2**50, "1.0 PiB"),
        (2**63, "8192.0 PiB"),
    ],
)
def test_format_bytes(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (75, "75.0 s"),
        (0.0123, "12.3 ms"),
        (45e-6, "45.0 µs"),
        (7e-9, "7 ns"),
        (-0.5, "-500.0 ms"),
    ],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@given(st.integers(0, 2**62))
def test_what_is_formatted_can_be_parsed(nbytes: int) -> None:
    text = format_bytes(nbytes)
    assert format_bytes(parse_budget(text)) == text


def test_doctests() -> None:
    assert doctest.testmod(remint.units).failed == 0
