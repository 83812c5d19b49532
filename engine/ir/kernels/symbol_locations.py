"""Locations of symbols in inputs: from which property of an input compiled code reads one.

A size is numbered by its dimension. The input itself, its storage offset and its strides have negative numbers.
"""

from __future__ import annotations

from typing import Any

NUMBER = -1
"""The input itself."""
OFFSET = -2
"""The storage offset."""


def stride_location(dim: int) -> int:
    """Return the location of a stride."""
    return OFFSET - 1 - dim


def read_symbol(value: Any, location: int) -> Any:
    """Return the value of the symbol that the input defines at this location."""
    if location >= 0:
        return value.shape[location]
    if location == NUMBER:
        return value
    return value.storage_offset() if location == OFFSET else value.stride()[stride_location(location)]


def symbol_expr(name: str, location: int) -> str:
    """Return Python source that reads a symbol from the input of this name."""
    if location >= 0:
        return f"{name}.shape[{location}]"
    if location == NUMBER:
        return name
    return f"{name}.storage_offset()" if location == OFFSET else f"{name}.stride({stride_location(location)})"
