"""One module per family of operators; importing them fills the table."""

from __future__ import annotations

from typing import Any

from engine.lowering.ops import bits, indexing, pointwise, pools, reductions, scatters, searching, views
from engine.lowering.table import TABLE, Lower

FAMILIES = (pointwise, bits, views, indexing, reductions, scatters, pools, searching)


def lowering_of(operator: Any) -> Lower | None:
    """The lowering of an operator, None where there is none."""
    return TABLE.get(operator)
