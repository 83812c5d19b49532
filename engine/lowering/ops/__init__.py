"""Lowerings of ATen operators, one module per family; importing them fills the registry."""

from __future__ import annotations

from typing import Any

from engine.lowering.ops import (  # noqa: F401 -- importing them fills the registry
    bitwise,
    complex_tensors,
    creation,
    embedding_bag,
    gamma_bessel_airy,
    grid_sample,
    indexing,
    nll_loss,
    pointwise,
    pooling,
    random,
    reductions,
    scans,
    scatter,
    scatter_reduce,
    searchsorted,
    softmax_norms,
    special_functions,
    views,
)
from engine.lowering.registry import COMPLEX_LOWERINGS, LOWERINGS, LoweringFn


def find_lowering(operator: Any) -> LoweringFn | None:
    """Return the lowering of an operator on real tensors, None without one."""
    return LOWERINGS.get(operator)


def find_complex_lowering(operator: Any) -> LoweringFn | None:
    """Return the lowering of an operator for calls with complex tensors, None without one."""
    return COMPLEX_LOWERINGS.get(operator)


def has_lowering(operator: Any) -> bool:
    """Return True if an operator has a lowering for real or complex tensors."""
    return operator in LOWERINGS or operator in COMPLEX_LOWERINGS
