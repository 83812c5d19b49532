"""Format and join strings."""

from __future__ import annotations

from typing import Any


def format_value(value: Any, conversion: int, spec: str) -> str:
    """Format one part of an f-string. ``conversion``: 0 none, 1 str, 2 repr, 3 ascii."""
    return format(value if not conversion else (str, repr, ascii)[conversion - 1](value), spec)


def join_f_string(parts: tuple[str | tuple[int, str], ...], *values: Any) -> str:
    """Join an f-string: literal pieces, and values with their conversions and formats."""
    given = iter(values)
    return "".join(part if isinstance(part, str) else format_value(next(given), *part) for part in parts)
