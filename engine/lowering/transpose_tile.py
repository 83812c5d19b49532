"""Choose a transpose tile for kernels that read in another memory order than they write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from engine.ir.loop_ir.index_expr import (
    IndexExpr,
    LoopVar,
    exact_quotient,
    flatten,
    product,
    static_product,
    unflatten,
    variable,
)
from engine.ir.loop_ir.memory_lines import Digit, digits_across, leading_variables, line_digits
from engine.ir.static_sizes import static_size
from engine.lowering.fusion.fusion_cost import is_negligible_size
from engine.lowering.fusion.fusion_group import FusionGroup

T = TypeVar("T")

MIN_TILED_ELEMENTS = 1 << 14
MAX_INNER_SIZE = 4_000_000
"""Longest inner size; more would exceed the grid's second dimension (65,535 blocks of 64)."""
LONG_ROW = 1 << 10
"""Rows of at least this length gain if values that belong to a whole row are loaded once."""


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
    written = [
        (line_digits(flatten(index, stored.stride), group.loop_vars), stored.dtype.itemsize)
        for stored, index in group.stores.items()
    ]
    inner = _most_bytes((leading_variables(digits), size) for digits, size in written)
    length = None if inner is None else static_product(v.size for v in inner)
    if inner is None or length is None or length > MAX_INNER_SIZE:
        return None
    read: list[tuple[tuple[Digit, ...], int]] = []
    beside: list[IndexExpr] = []
    for source, demands in group.reads.items():
        positions = [flatten(demand.index, source.stride) for demand in demands]
        if is_negligible_size(product(source.shape), group.numel):
            # A small tensor, such as one number per row, is read repeatedly from the cache.
            beside += positions
        else:
            read += [(line_digits(p, group.loop_vars), source.dtype.itemsize) for p in positions]
    rows = _most_bytes((digits_across(digits, inner), size) for digits, size in (*read, *written))
    if rows:
        return _tile(group.loop_vars, inner, rows)
    reads_whole_rows = all(not digits or digits[0].var == inner[0] for digits, _ in read)
    if len(inner) == 1 and reads_whole_rows and _reads_per_row_values(inner[0], beside):
        return Tile(tuple(v for v in group.loop_vars if v != inner[0]), inner)
    return None


def _most_bytes(accesses: Iterable[tuple[T, int]]) -> T | None:
    """Return what most bytes of an element have in common, without what is empty."""
    counts: Counter[T] = Counter()
    for key, size in accesses:
        if key:
            counts[key] += size
    return max(counts, key=counts.__getitem__, default=None)


def _tile(loop_vars: tuple[LoopVar, ...], inner: tuple[LoopVar, ...], rows: tuple[Digit, ...]) -> Tile | None:
    """Return a tile whose consecutive rows differ in these digits, the first one fastest."""
    parts: dict[tuple[LoopVar, int], LoopVar] = {}
    splits: dict[LoopVar, IndexExpr] = {}
    for var in loop_vars:
        if var in inner:
            continue
        cuts = sorted({1, *(cut for d in rows if d.var == var for cut in (d.low, d.high) if cut != var.size)})
        total = IndexExpr()
        for cut, end in zip(cuts, (*cuts[1:], var.size), strict=True):
            size = exact_quotient(end, cut)
            if size is None:
                return None
            part = parts[var, cut] = var if len(cuts) == 1 else LoopVar(f"{var.name}_{cut}", size)
            total += variable(part) * cut
        if len(cuts) > 1:
            splits[var] = total
    fastest = [parts.pop(key) for key in dict.fromkeys((d.var, d.low) for d in rows)]
    return Tile((*parts.values(), *reversed(fastest)), inner[::-1], splits)


def _reads_per_row_values(inner: LoopVar, beside: list[IndexExpr]) -> bool:
    """Return True if the kernel loads several values that belong to whole ``inner`` rows."""
    numbers = [index for index in beside if index.terms and inner not in index.variables()]
    return (static_size(inner.size) or 0) >= LONG_ROW and len(numbers) > 1
