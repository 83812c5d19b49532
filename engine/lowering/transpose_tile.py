"""Finds kernels that read across the order in which they write, and names the variable along which they had better read a tile at a time."""

from __future__ import annotations

from collections import Counter

from engine.ir.loop_ir.index_expr import IndexExpr, LoopVar, flatten, product
from engine.lowering.fusion_cost import is_negligible_size
from engine.lowering.scheduler import FusionGroup

MIN_TILE_SIDE = 16
"""Sizes below this leave nothing to gain: a few elements share each line of memory anyway."""
MIN_TILED_ELEMENTS = 1 << 14
MAX_INNER_SIZE = 4_000_000
"""Beyond this a tile's shorter loop would need more programs side by side than a device's grid has in its second dimension (65,535 of 64)."""
LONG_ROW = 1 << 10
"""A row from which it pays to read what belongs to a whole row once, and to compute with it once."""


def choose_transpose_tile(group: FusionGroup) -> tuple[tuple[LoopVar, ...], tuple[LoopVar, ...]] | None:
    """``(outer, inner)`` variables of an elementwise kernel that a tile spans, None where one flat walk is as good.

    The inner variable is the one along which the kernel writes; the last outer one that along which it reads.
    """
    if group.reduction_vars is not None or group.has_scan or len(group.loop_vars) < 2:
        return None
    if any(made.kind == "scatter" for made in group.stores):
        return None
    if isinstance(group.numel, int) and group.numel < MIN_TILED_ELEMENTS:
        return None
    written = Counter(
        v for made, index in group.stores.items() if (v := _contiguous_var(flatten(index, made.stride), group))
    )
    read: Counter[LoopVar] = Counter()
    beside: list[IndexExpr] = []
    for source, demands in group.reads.items():
        if is_negligible_size(product(source.shape), group.numel):
            # A number a row, say: it is read again and again, from nearby.
            beside += [flatten(demand.index, source.stride) for demand in demands]
            continue
        for demand in demands:
            var = _contiguous_var(flatten(demand.index, source.stride), group)
            if var is not None:
                read[var] += source.dtype.itemsize
    if len(written) != 1:
        return None
    (inner,) = written
    across = [v for v in read if v != inner and _is_tileable(v)]
    if not isinstance(inner.size, int) or inner.size > MAX_INNER_SIZE:
        return None
    if not across and set(read) <= {inner} and _reads_per_row_values(inner, beside):
        return tuple(v for v in group.loop_vars if v != inner), (inner,)
    if not across or not _is_tileable(inner):
        return None
    last = max(across, key=lambda v: read[v])
    rest = tuple(v for v in group.loop_vars if v not in (inner, last))
    return (*rest, last), (inner,)


def _contiguous_var(position: IndexExpr, group: FusionGroup) -> LoopVar | None:
    """The loop variable whose neighbours lie side by side in memory."""
    return next((v for v in group.loop_vars if position.terms.get(v) == 1), None)


def _reads_per_row_values(inner: LoopVar, beside: list[IndexExpr]) -> bool:
    """Whether several things that are read belong to whole rows along ``inner``."""
    numbers = [index for index in beside if index.terms and inner not in index.variables()]
    return isinstance(inner.size, int) and inner.size >= LONG_ROW and len(numbers) > 1


def _is_tileable(var: LoopVar) -> bool:
    return isinstance(var.size, int) and var.size >= MIN_TILE_SIDE
