"""One module per family of operators; importing them fills the table."""

from __future__ import annotations

from engine.lowering.ops import indexing, pointwise, reductions, views

FAMILIES = (pointwise, views, indexing, reductions)
