"""Amounts as text: a few digits and a unit, never an exponent."""

from __future__ import annotations


def format_digits(value: float, digits: int) -> str:
    """Return a number rounded to some digits; those before the decimal point all stay."""
    return f"{value:.{digits}g}" if round(value) < 10**digits else f"{value:.0f}"


def format_seconds(seconds: float, digits: int = 2) -> str:
    """Return a duration with the unit that suits it: ``1.2 s``, ``30 ms``, ``450 µs``."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{format_digits(seconds * factor, digits)} {unit}"
    return f"{format_digits(seconds * 1e6, digits)} µs"


def format_bytes(count: int | None) -> str:
    """Return bytes with a decimal unit, ``12 B``, ``4.1 kB``, ``1.5 GB``; empty if unknown."""
    if count is None:
        return ""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if round(value) < 1000:
            return f"{format_digits(value, 3)} {unit}"
        value /= 1000
    return f"{format_digits(value, 3)} GB"
