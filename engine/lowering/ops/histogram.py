"""Lower ``histc``: each element adds one to the bin that it falls in."""

from __future__ import annotations

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.ops import LoopIROp, compute_dtype
from engine.ir.loop_ir.tensor_def import Coordinates
from engine.lowering.context import LoweredTensor, LoweringContext
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.ops.reductions import min_or_max
from engine.lowering.ops.scatter import scatter_into
from engine.lowering.ops.scatter_reduce import aten
from engine.lowering.promotion import check_supported_dtype
from engine.lowering.registry import register_lowering


@register_lowering(aten.histc.default)
def histc(low: LoweringContext, a: LoweredTensor, bins: int = 100, min: float = 0, max: float = 0) -> LoweredTensor:
    """Count the elements in bins of equal width between ``min`` and ``max``.

    If both are 0, the bounds are the data's minimum and maximum. Equal bounds are widened by 1 on each side.
    """
    check_supported_dtype(a)
    if not all(isinstance(v, (int, float)) for v in (min, max)) or 0 in a.shape:
        raise NotLowered(
            LoweringFallback.SYMBOLIC_NUMBER, "histc with symbolic bounds or without elements has no lowering"
        )
    math_dtype = compute_dtype(a.dtype) if a.dtype.is_floating_point else torch.float32
    dims = tuple(range(len(a.shape)))
    name = low.node_name
    if min == max:
        least = min_or_max(low, "min", a, dims, False, name=f"{name}_least")
        most = min_or_max(low, "max", a, dims, False, name=f"{name}_most")
    zeros = low.full((bins,), a.dtype, 0, name="zeros")

    def bounds(b: LoopBuilder) -> tuple[LoopIROp, LoopIROp]:
        if min != max:
            return b.constant(float(min), math_dtype), b.constant(float(max), math_dtype)
        if min != 0:
            return b.constant(min - 1.0, math_dtype), b.constant(max + 1.0, math_dtype)
        low_end, high_end = b.cast(least.load(b, ()), math_dtype), b.cast(most.load(b, ()), math_dtype)
        is_flat = low_end.equals(high_end)
        return b.where(is_flat, low_end - 1.0, low_end), b.where(is_flat, high_end + 1.0, high_end)

    def write(b: LoopBuilder, i: Coordinates) -> tuple[Coordinates, LoopIROp]:
        value, (start, end) = b.cast(a.load(b, i), math_dtype), bounds(b)
        share = (value - start) * float(bins)
        position = b.cast(share / (end - start), torch.int64)
        position = b.call("minimum", position, bins - 1)
        inside = (value >= start) & (value <= end)
        bin_index = b.indirect_index(b.where(inside, position, bins), bins, wraps=False, is_checked=False)
        return (bin_index,), b.constant(1, a.dtype)

    return scatter_into(low, zeros, a.shape, write, is_added=True)
