"""Places in an input that define a symbol.

A size has its dimension as place; the input itself, its offset and its strides have negative numbers.
"""

from __future__ import annotations

from typing import Any

NUMBER = -1
"""The input itself."""
OFFSET = -2
"""The storage offset."""


def stride_place(dim: int) -> int:
    """Return the place of a stride."""
    return OFFSET - 1 - dim


def read_place(value: Any, place: int) -> Any:
    """Return the symbol's value, from a value of the input."""
    if place >= 0:
        return value.shape[place]
    if place == NUMBER:
        return value
    return value.storage_offset() if place == OFFSET else value.stride()[stride_place(place)]


def place_expr(name: str, place: int) -> str:
    """Return Python source that reads a symbol from the input of this name."""
    if place >= 0:
        return f"{name}.shape[{place}]"
    if place == NUMBER:
        return name
    return f"{name}.storage_offset()" if place == OFFSET else f"{name}.stride({stride_place(place)})"
