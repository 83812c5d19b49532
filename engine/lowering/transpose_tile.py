"""Choose a transpose tile for kernels that read in another memory order than they write."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from engine.ir.loop_ir.index_expr import (
    Atom,
    IndexExpr,
    LoopVar,
    exact_quotient,
    flatten,
    product,
    static_product,
    unflatten,
    variable,
)
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
MAX_INTERLEAVED = 32
"""Largest step between elements that are read for neighboring written ones.

With more, the values between them fill lines of memory of their own.
"""


@dataclass(frozen=True)
class Tile:
    """The variables of a kernel's two loops.

    A pointwise kernel writes along ``inner`` and reads along the last outer one.
    ``splits``: variables of the fusion group as sums of the tile's.
    """

    outer: tuple[LoopVar, ...]
    inner: tuple[LoopVar, ...] | None
    splits: dict[LoopVar, IndexExpr] = field(default_factory=dict)

    def values(self, x: LoopVar, r: LoopVar | None) -> dict[LoopVar, IndexExpr]:
        """Return each variable of the fusion group in terms of the loops ``x`` and ``r``."""
        values: dict[LoopVar, IndexExpr] = {}
        for variables, flat in ((self.outer, x), (self.inner, r)):
            if variables is not None and flat is not None:
                values |= zip(variables, unflatten(variable(flat), tuple(v.size for v in variables)), strict=True)
        return values | {var: parts.replace(values) for var, parts in self.splits.items()}


def choose_transpose_tile(group: FusionGroup) -> Tile | None:
    """Return the tile of a pointwise kernel that gains from one, None for one flat loop."""
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
    positions: list[IndexExpr] = []
    beside: list[IndexExpr] = []
    for source, demands in group.reads.items():
        if is_negligible_size(product(source.shape), group.numel):
            # A small tensor, such as one number per row, is read repeatedly from the cache.
            beside += [flatten(demand.index, source.stride) for demand in demands]
            continue
        for demand in demands:
            positions.append(position := flatten(demand.index, source.stride))
            var = _contiguous_var(position, group)
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
        return Tile(tuple(v for v in group.loop_vars if v != inner), (inner,))
    if not _is_tileable(inner):
        return None
    if not across:
        return next((t for p in positions if (t := _interleaved_tile(p, inner, group.loop_vars)) is not None), None)
    last = max(across, key=lambda v: read[v])
    outer = tuple(v for v in group.loop_vars if v not in (inner, last))
    return Tile((*outer, last), (inner,))


def _interleaved_tile(position: IndexExpr, inner: LoopVar, loop_vars: tuple[LoopVar, ...]) -> Tile | None:
    """Return a tile that reads some neighbors per inner element; None if there are none.

    A pixel shuffle of channels last writes channels side by side, and reads them with the pixels that they
    become between them.
    """
    step = static_size(position.terms.get(inner, 0)) or 0
    outer = [v for v in loop_vars if v != inner]
    lows: list[LoopVar] = []
    splits: dict[LoopVar, IndexExpr] = {}
    between = 1
    while between < step <= MAX_INTERLEAVED:
        var, size = next((_low_digit(atom) for atom, by in position.terms.items() if by == between), (None, 1))
        quotient = exact_quotient(var.size, size) if var in outer else None
        if var is None or quotient is None:
            return None
        high, low = LoopVar(f"{var.name}_high", quotient), LoopVar(f"{var.name}_low", size)
        outer[outer.index(var)] = high
        lows.insert(0, low)
        splits[var] = variable(high) * size + variable(low)
        between *= size
    return Tile((*outer, *lows), (inner,), splits) if 1 < between == step else None


def _low_digit(atom: Atom) -> tuple[LoopVar | None, int]:
    """Return ``(v, d)`` for ``v % d``, or v itself of size d; else ``(None, 1)``."""
    remainder = atom.as_remainder()
    var, size = (atom.as_variable(), atom.count()) if remainder is None else remainder.divided_variable() or (None, 1)
    static = static_size(size) if size is not None else None
    return (None, 1) if static is None or static < 2 else (var, static)


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
