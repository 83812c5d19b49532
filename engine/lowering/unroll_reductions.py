"""Unroll short sums that only other reductions read, so that they fuse.

Distances of points are an example: three coordinates are summed for each pair, and a row of pairs is then reduced
to its minimum. If the sum were a reduction too, the distances of all pairs would be stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import IndexExpr, product, sizes_equal, static_product
from engine.ir.loop_ir.ops import LoopIROp
from engine.ir.loop_ir.tensor_def import Coordinates, TensorDef
from engine.lowering.fusion_cost import build_unfused

MAX_UNROLLED = 8
"""Longest sum that is unrolled."""


def unroll_reductions(defs: list[TensorDef], kept: Collection[TensorDef]) -> None:
    """Turn short sums that only reductions read into pointwise definitions, in place."""
    short = [
        made for made in defs if made.reduction == "sum" and made.kind == "reduction" and _is_short_reduction(made)
    ]
    if not short:
        return
    readers: dict[TensorDef, list[TensorDef]] = {}
    for made in defs:
        for source in build_unfused(made).read_tensors.values() if made.is_computed else ():
            readers.setdefault(source, []).append(made)
    for made in short:
        if _feeds_only_reductions(made, made, readers, kept):
            _unroll(made)


def _is_short_reduction(made: TensorDef) -> bool:
    return 1 < (static_product(made.ranges) or 0) <= MAX_UNROLLED


def _feeds_only_reductions(
    made: TensorDef, short: TensorDef, readers: dict[TensorDef, list[TensorDef]], kept: Collection[TensorDef]
) -> bool:
    """Return True if all readers are reductions that visit each element of the short sum once."""
    own = product(short.shape)
    if made in kept or made not in readers:
        return False
    for reader in readers[made]:
        if not sizes_equal(product((*reader.loop_ranges, *reader.ranges)), own):
            return False
        if reader.kind == "pointwise":
            if not _feeds_only_reductions(reader, short, readers, kept):
                return False
        elif reader.kind != "reduction" or sizes_equal(product(reader.ranges), 1):
            return False
    return True


def _unroll(made: TensorDef) -> None:
    body, places = made.body, list(itertools.product(*(range(int(n)) for n in made.ranges)))

    def total(b: LoopBuilder, index: Coordinates) -> LoopIROp:
        parts = [body(b, index, tuple(IndexExpr({}, k) for k in place)) for place in places]
        found: LoopIROp = parts[0]
        for part in parts[1:]:
            found = b.call("add", found, part)
        return found

    made.kind, made.body, made.ranges, made.reduction, made.unfused = "pointwise", total, (), "", None
