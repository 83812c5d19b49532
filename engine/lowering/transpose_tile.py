"""Choose a transpose tile for kernels that read in another memory order than they write."""

from __future__ import annotations

from collections import Counter

from engine.ir.loop_ir.index_expr import IndexExpr, LoopVar, flatten, product, static_product
from engine.ir.static_sizes import static_size
from engine.lowering.fusion.fusion_cost import is_negligible_size
from engine.lowering.fusion.fusion_group import FusionGroup

MIN_TILE_SIDE = 16
"""Shorter dimensions gain nothing: few elements share a line of memory anyway."""
MIN_TILED_ELEMENTS = 1 << 14
MAX_INNER_SIZE = 4_000_000
"""Longest inner size; more would exceed the grid's second dimension (65,535 blocks of 64)."""
LONG_ROW = 1 << 10
"""Rows of at least this length gain if values that belong to a whole row are loaded once."""


def choose_transpose_tile(group: FusionGroup) -> tuple[tuple[LoopVar, ...], tuple[LoopVar, ...]] | None:
    """Return ``(outer, inner)`` variables of a tiled pointwise kernel, None for one flat loop.

    The kernel writes along the inner variable and reads along the last outer one.
    """
    if group.reduction_vars is not None or group.has_scan or len(group.loop_vars) < 2:
        return None
    if any(stored.kind == "scatter" for stored in group.stores):
        return None
    numel = static_product((group.numel,))
    if numel is not None and numel < MIN_TILED_ELEMENTS:
        return None
    written = Counter(
        v for stored, index in group.stores.items() if (v := _contiguous_var(flatten(index, stored.stride), group))
    )
    read: Counter[LoopVar] = Counter()
    beside: list[IndexExpr] = []
    for source, demands in group.reads.items():
        if is_negligible_size(product(source.shape), group.numel):
            # A small tensor, such as one number per row, is read repeatedly from the cache.
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
    length = static_size(inner.size)
    if length is None or length > MAX_INNER_SIZE:
        return None
    if not across and set(read) <= {inner} and _reads_per_row_values(inner, beside):
        return tuple(v for v in group.loop_vars if v != inner), (inner,)
    if not across or not _is_tileable(inner):
        return None
    last = max(across, key=lambda v: read[v])
    outer = tuple(v for v in group.loop_vars if v not in (inner, last))
    return (*outer, last), (inner,)


def _contiguous_var(position: IndexExpr, group: FusionGroup) -> LoopVar | None:
    """Return the loop variable whose consecutive values are adjacent in memory.

    It may number the channels of several samples: then they are adjacent in runs.
    """
    whole = next((v for v in group.loop_vars if position.terms.get(v) == 1), None)
    if whole is not None:
        return whole
    runs = [r for atom, by in position.terms.items() if by == 1 and (r := atom.as_remainder()) is not None]
    long = [r.dividend.single_atom() for r in runs if (static_size(r.divisor) or 0) >= MIN_TILE_SIDE]
    return next((v for v in group.loop_vars if v in long), None)


def _reads_per_row_values(inner: LoopVar, beside: list[IndexExpr]) -> bool:
    """Return True if the kernel loads several values that belong to whole ``inner`` rows."""
    numbers = [index for index in beside if index.terms and inner not in index.variables()]
    return (static_size(inner.size) or 0) >= LONG_ROW and len(numbers) > 1


def _is_tileable(var: LoopVar) -> bool:
    return (static_size(var.size) or 0) >= MIN_TILE_SIDE
