"""Format and join strings."""

from __future__ import annotations

from typing import Any


def format_value(value: Any, conversion: int, spec: str) -> str:
    """Format one part of an f-string. ``conversion``: 0 none, 1 str, 2 repr, 3 ascii."""
    return format(value if not conversion else (str, repr, ascii)[conversion - 1](value), spec)


def join_f_string(formats: tuple[tuple[int, str], ...], *values: Any) -> str:
    """Join an f-string: values with their conversions and formats."""
    return "".join(
        format_value(value, *conversion_and_spec) for value, conversion_and_spec in zip(values, formats, strict=True)
    )
