"""Tests for unbacked symbols: symbols whose value is known only when the graph runs."""

from __future__ import annotations

from typing import Any

from engine.ir.introspection.symbols import symbolic_sizes_in
from engine.torch_private.symbolic_shapes import free_unbacked_symbols


def has_unbacked_symbols(value: Any) -> bool:
    """Return True if a fake tensor, a symbol or a container of them has unbacked symbols."""
    return any(map(free_unbacked_symbols, symbolic_sizes_in(value)))
