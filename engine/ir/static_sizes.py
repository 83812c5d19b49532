"""Sizes that are known while compiling: ints, not symbols."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def static_size(size: Any) -> int | None:
    """Return a size as an int if it is an int or sympy Integer, None if it is symbolic."""
    return int(size) if isinstance(size, int) or getattr(size, "is_Integer", False) else None


def static_sizes(sizes: Iterable[Any]) -> tuple[int, ...] | None:
    """Return sizes as ints, None if any is symbolic."""
    numbers = [static_size(s) for s in sizes]
    return tuple(s for s in numbers if s is not None) if None not in numbers else None


def are_positive_sizes(sizes: Iterable[Any]) -> bool:
    """Return True if all sizes are known and positive."""
    return all((static_size(s) or 0) > 0 for s in sizes)
