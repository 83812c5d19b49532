"""One module per family of operators; importing them fills the table."""

from __future__ import annotations

from typing import Any

from engine.lowering.ops import (
    adaptive_pooling,
    bitwise,
    complex_tensors,
    embedding_bag,
    gamma_bessel_airy,
    grid_sample,
    indexing,
    orthogonal_polynomials,
    pointwise,
    pooling,
    random,
    reductions,
    scatter,
    scatter_reduce,
    searchsorted,
    special_functions,
    views,
)
from engine.lowering.registry import COMPLEX_LOWERINGS, LOWERINGS, LoweringFn

OP_MODULES = (
    pointwise,
    bitwise,
    special_functions,
    gamma_bessel_airy,
    orthogonal_polynomials,
    views,
    indexing,
    reductions,
    scatter,
    scatter_reduce,
    pooling,
    adaptive_pooling,
    searchsorted,
    embedding_bag,
    grid_sample,
    random,
    complex_tensors,
)


def find_lowering(operator: Any) -> LoweringFn | None:
    """The lowering of an operator for real tensors, None where there is none."""
    return LOWERINGS.get(operator)


def find_complex_lowering(operator: Any) -> LoweringFn | None:
    """The lowering of an operator for calls that take or give complex tensors, None where there is none."""
    return COMPLEX_LOWERINGS.get(operator)


def has_lowering(operator: Any) -> bool:
    """Whether an operator has a lowering of either kind."""
    return operator in LOWERINGS or operator in COMPLEX_LOWERINGS
