"""Unroll short sums that only other reductions read, so that they fuse.

Distances of points are an example: three coordinates are summed for each pair, and a row of pairs is then reduced
to its minimum. If the sum were a reduction too, the distances of all pairs would be stored.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection

from engine.group_pairs import group_pairs
from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import IndexExpr, product, sizes_equal, static_product
from engine.ir.loop_ir.ops import LoopIROp
from engine.ir.loop_ir.tensor_def import Coordinates, TensorDef
from engine.lowering.fusion.fusion_cost import build_unfused

MAX_UNROLLED = 8
"""Longest sum that is unrolled."""


def unroll_reductions(defs: list[TensorDef], returned: Collection[TensorDef]) -> None:
    """Turn short sums that only reductions read into pointwise definitions, in place."""
    short = [
        tensor_def
        for tensor_def in defs
        if tensor_def.reduction == "sum" and tensor_def.kind == "reduction" and _is_short_reduction(tensor_def)
    ]
    if not short:
        return
    readers = group_pairs((s, d) for d in defs if d.is_computed for s in build_unfused(d).read_tensors.values())
    for tensor_def in short:
        if _feeds_only_reductions(tensor_def, tensor_def, readers, returned):
            _unroll(tensor_def)


def _is_short_reduction(tensor_def: TensorDef) -> bool:
    return 1 < (static_product(tensor_def.ranges) or 0) <= MAX_UNROLLED


def _feeds_only_reductions(
    tensor_def: TensorDef, short: TensorDef, readers: dict[TensorDef, list[TensorDef]], returned: Collection[TensorDef]
) -> bool:
    """Return True if all readers are reductions that visit each element of the short sum once."""
    own = product(short.shape)
    if tensor_def in returned or tensor_def not in readers:
        return False
    for reader in readers[tensor_def]:
        if not sizes_equal(product((*reader.loop_ranges, *reader.ranges)), own):
            return False
        if reader.kind == "pointwise":
            if not _feeds_only_reductions(reader, short, readers, returned):
                return False
        elif reader.kind != "reduction" or sizes_equal(product(reader.ranges), 1):
            return False
    return True


def _unroll(tensor_def: TensorDef) -> None:
    body, positions = tensor_def.body, list(itertools.product(*(range(int(n)) for n in tensor_def.ranges)))

    def total(b: LoopBuilder, index: Coordinates) -> LoopIROp:
        parts: list[LoopIROp] = [body(b, index, tuple(IndexExpr({}, k) for k in position)) for position in positions]
        return functools.reduce(LoopIROp.__add__, parts)

    tensor_def.kind, tensor_def.body, tensor_def.unfused = "pointwise", total, None
    tensor_def.ranges, tensor_def.reduction = (), ""
