"""Bytes and seconds as people write them: `"2GiB"`, `"1500MB"`, `"50%"`, `12.3 ms`."""

from __future__ import annotations

import math
import re

_FACTORS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGTPE", start=1):
    _FACTORS[_letter] = _FACTORS[f"{_letter}IB"] = 1024**_power
    _FACTORS[f"{_letter}B"] = 1000**_power

_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*|%)\s*")


def parse_budget(budget: int | float | str, *, peak_bytes: int | None = None) -> int:
    """Return `budget` in bytes; a percentage is of `peak_bytes`, where that peak is known.

    `"2GiB"` and `"2G"` are 2 * 1024**3 bytes, `"2GB"` is 2 * 10**9. Fractions of a byte are dropped.

    >>> parse_budget("1.5KiB"), parse_budget(1536), parse_budget("50%", peak_bytes=3000)
    (1536, 1536, 1500)
    """
    nbytes = _quantity(budget, peak_bytes)
    if not math.isfinite(nbytes) or nbytes < 0:
        raise ValueError(f"a budget is a number of bytes, 0 or more, not {budget!r}")
    return int(nbytes)


def _quantity(budget: int | float | str, peak_bytes: int | None) -> int | float:
    if isinstance(budget, bool) or not isinstance(budget, int | float | str):
        raise ValueError(f'a budget is bytes, an int or a string such as "2GiB", not {budget!r}')
    if not isinstance(budget, str):
        return budget
    match = _QUANTITY.fullmatch(budget)
    unit = match[2].upper() if match else None
    if match is None or (unit != "%" and unit not in _FACTORS):
        raise ValueError(
            f'budget {budget!r} is not understood: write bytes ("2147483648"), a unit ("2GiB", "1500MB") '
            'or, where the peak is known, a percentage ("50%")'
        )
    number = float(match[1]) if "." in match[1] else int(match[1])
    if unit == "%":
        if peak_bytes is None:
            raise ValueError(
                f"budget {budget!r} is a percentage, but the peak without a budget is not known here: give bytes"
            )
        return peak_bytes * number / 100 if isinstance(number, float) else peak_bytes * number // 100
    return number * _FACTORS[str(unit)]


def format_bytes(nbytes: int | float) -> str:
    """Return `nbytes` in the binary unit that reads best.

    >>> format_bytes(0), format_bytes(1536), format_bytes(268435456)
    ('0 B', '1.5 KiB', '256.0 MiB')
    """
    if abs(nbytes) < 1024:
        return f"{nbytes:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        nbytes /= 1024
        if abs(nbytes) < 1024:
            return f"{nbytes:.1f} {unit}"
    return f"{nbytes / 1024:.1f} PiB"


def format_seconds(seconds: float) -> str:
    """Return `seconds` in the unit that reads best.

    >>> format_seconds(0), format_seconds(0.0123), format_seconds(75)
    ('0 s', '12.3 ms', '75.0 s')
    """
    if seconds == 0:
        return "0 s"
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if abs(seconds) * factor >= 1:
            return f"{seconds * factor:.1f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def budget_text(nbytes: int) -> str:
    """Return a short budget that people can write, of at least `nbytes`.

    >>> budget_text(50_000_000), parse_budget(budget_text(50_000_000)) >= 50_000_000, budget_text(700)
    ('47.7MiB', True, '700')
    """
    if nbytes < 1024:
        return str(nbytes)
    power = min((nbytes.bit_length() - 1) // 10, 5)
    # Small numbers take one more digit, so that the text is at most 1% above.
    digits = 1 if nbytes >= 10 * 1024**power else 2
    number = math.ceil(nbytes * 10**digits / 1024**power) / 10**digits
    return f"{number:.{digits}f}".rstrip("0").rstrip(".") + f"{'KMGTP'[power - 1]}iB"
