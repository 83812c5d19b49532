"""Tests for unbacked symbols: symbols whose value is known only when the graph runs."""

from __future__ import annotations

from typing import Any

import torch

from engine.torch_private.symbolic_shapes import free_unbacked_symbols


def has_unbacked_symbols(value: Any) -> bool:
    """Return True if a fake tensor, a symbol or a container of them has unbacked symbols."""
    if isinstance(value, (list, tuple)):
        return any(has_unbacked_symbols(v) for v in value)
    if isinstance(value, dict):
        return has_unbacked_symbols(list(value.values()))
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return bool(free_unbacked_symbols(value))
    if isinstance(value, torch.Tensor):
        return value._has_symbolic_sizes_strides and any(map(has_unbacked_symbols, value.shape))
    return False
