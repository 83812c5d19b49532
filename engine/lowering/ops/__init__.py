"""One module per family of operators; importing them fills the table."""

from __future__ import annotations

from typing import Any

from engine.lowering.ops import (
    adaptive,
    bags,
    bits,
    collects,
    complexes,
    gammas,
    grids,
    indexing,
    orthogonal,
    pointwise,
    pools,
    random,
    reductions,
    scatters,
    searching,
    special,
    views,
)
from engine.lowering.table import COMPLEX_LOWERINGS, LOWERINGS, LoweringFn

OP_MODULES = (
    pointwise,
    bits,
    special,
    gammas,
    orthogonal,
    views,
    indexing,
    reductions,
    scatters,
    collects,
    pools,
    adaptive,
    searching,
    bags,
    grids,
    random,
    complexes,
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
