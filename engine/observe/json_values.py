"""Read values of untrusted JSON: another type than the expected one counts as missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def as_object(value: Any) -> Mapping[str, Any]:
    """Return a JSON object; an empty one for another value."""
    return value if isinstance(value, Mapping) else {}


def as_list(value: Any) -> Sequence[Any]:
    """Return a JSON array; an empty one for another value."""
    return value if isinstance(value, (list, tuple)) else ()


def as_text(value: Any, default: str = "") -> str:
    """Return a JSON string; the default for another value."""
    return value if isinstance(value, str) else default


def as_int(value: Any) -> int | None:
    """Return a JSON integer; None for another value."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def as_number(value: Any) -> float | None:
    """Return a JSON number; None for another value."""
    return value if isinstance(value, float) else as_int(value)
