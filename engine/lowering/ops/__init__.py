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
from engine.lowering.table import COMPLEX, TABLE, Lower

FAMILIES = (
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


def lowering_of(operator: Any) -> Lower | None:
    """The lowering of an operator for real tensors, None where there is none."""
    return TABLE.get(operator)


def complex_lowering_of(operator: Any) -> Lower | None:
    """The lowering of an operator for calls that take or give complex tensors, None where there is none."""
    return COMPLEX.get(operator)


def is_lowered(operator: Any) -> bool:
    """Whether an operator has a lowering of either kind."""
    return operator in TABLE or operator in COMPLEX
