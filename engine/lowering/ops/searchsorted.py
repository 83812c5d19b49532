"""Binary searches, unrolled, and ``histc``: find the bin of each value."""

from __future__ import annotations

from typing import Any

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.ops import LoopIROp, compute_dtype
from engine.ir.loop_ir.tensor_def import Coordinates
from engine.ir.static_sizes import static_size
from engine.lowering.context import LoweredTensor, LoweringContext, fake_result, lowered_tensors
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.ops.reductions import min_or_max
from engine.lowering.ops.scatter import scatter_into
from engine.lowering.promotion import broadcast_shape, promote_dtypes
from engine.lowering.registry import register_lowering
from engine.lowering.result_strides import symbolic_shape

aten = torch.ops.aten

MAX_ROW_LENGTH = 1 << 16
"""Longest row that a kernel searches: each doubling adds a step to the kernel's text."""


def binary_search(
    low: LoweringContext,
    rows: LoweredTensor,
    values: Any,
    dtype: torch.dtype,
    *,
    right: bool,
    rows_name: str = "a search has no lowering for rows",
) -> LoweredTensor:
    """Return the first index in a row whose element is at least (``right``: above) each value.

    ``rows_name``: start of the reason if the rows have no lowering.

    Raises:
        NotLowered: rows are too long, or their length is unknown.
    """
    count = static_size(rows.shape[-1])
    if count is None or not 0 < count <= MAX_ROW_LENGTH:
        raise NotLowered(
            LoweringFallback.LONG_SEQUENCE, f"{rows_name} that are empty, symbolic or longer than {MAX_ROW_LENGTH}"
        )
    tensors = lowered_tensors(values)
    math_dtype = promote_dtypes((rows, values))[0] if tensors else rows.dtype
    if isinstance(values, float) and not rows.dtype.is_floating_point:
        raise NotLowered(LoweringFallback.MIXED_DTYPES, "a search of a float in integers has no lowering")
    is_single = len(rows.shape) == 1

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        value = b.cast(values.load(b, i), math_dtype) if tensors else b.constant(values, math_dtype)
        lead = () if is_single else i[:-1]

        def row_at(position: LoopIROp) -> LoopIROp:
            where = b.indirect_index(position, count, wraps=False, is_checked=False)
            return b.cast(rows.load(b, (*lead, where)), math_dtype)

        start, end = b.constant(0, torch.int64), b.constant(count, torch.int64)
        for _ in range(count.bit_length()):
            middle = b.call("truncdiv", start + end, 2)
            is_open = start < end
            middle_value = b.masked(is_open, lambda at=middle: row_at(at), value)  # type: ignore[misc]
            # Not the opposite comparison: NaN belongs behind all numbers.
            is_far = b.call("gt" if right else "ge", middle_value, value, dtype=torch.bool)
            onward = is_open & b.call("not", is_far)
            start = b.where(onward, middle + 1, start)
            end = b.where(is_open & is_far, middle, end)
        return b.cast(start, dtype)

    return low.pointwise(broadcast_shape(tensors), dtype, body)


@register_lowering(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(
    low: LoweringContext, values: Any, boundaries: LoweredTensor, *, out_int32: bool = False, right: bool = False
) -> LoweredTensor:
    return binary_search(low, boundaries, values, fake_result(low).dtype, right=right)


@register_lowering(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    low: LoweringContext,
    rows: LoweredTensor,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: LoweredTensor | None = None,
) -> LoweredTensor:
    if sorter is not None:
        rows = _sorted_rows(low, rows, sorter)
    return binary_search(low, rows, values, fake_result(low).dtype, right=right or side == "right")


def _sorted_rows(low: LoweringContext, rows: LoweredTensor, sorter: LoweredTensor) -> LoweredTensor:
    """Return sorted rows; all indices are checked, also those that no search needs."""

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        return rows.load(b, (*i[:-1], b.indirect_index(sorter.load(b, i), rows.shape[-1], wraps=False)))

    return low.pointwise(rows.shape, rows.dtype, body, name=f"{low.node_name}_sorted")


@register_lowering(aten.repeat_interleave.Tensor)
def repeat_interleave(low: LoweringContext, repeats: LoweredTensor, *, output_size: Any = None) -> LoweredTensor:
    """Repeat each element's index; a search in the running sum of the counts finds it."""
    if output_size is None or len(repeats.shape) != 1:
        raise NotLowered(LoweringFallback.DATA_DEPENDENT_SIZE, "the size of its result is data-dependent")
    name = low.node_name
    (size,) = symbolic_shape(fake_result(low))
    count = static_size(repeats.shape[0])
    if count is None or count > MAX_ROW_LENGTH:
        raise NotLowered(
            LoweringFallback.LONG_SEQUENCE,
            f"a repeat of more than {MAX_ROW_LENGTH} elements, or of a symbolic number, has no lowering",
        )
    wide = torch.int64
    each = low.pointwise((count,), wide, repeats.loader(wide), name=f"{name}_counts")
    ends = low.scan("sum", (count,), 0, wide, each.load) if count > 1 else each
    positions = low.pointwise((size,), wide, lambda b, i: b.cast(b.index_value(i[0]), wide), name=f"{name}_places")
    name = "repeat_interleave has no lowering for repeats"
    return binary_search(low, ends, positions, fake_result(low).dtype, right=True, rows_name=name)


@register_lowering(aten.histc.default)
def histc(low: LoweringContext, a: LoweredTensor, bins: int = 100, min: float = 0, max: float = 0) -> LoweredTensor:
    """Count the elements in bins of equal width between ``min`` and ``max``.

    If both are 0, the bounds are the data's minimum and maximum. Equal bounds are widened by 1 on each side.
    """
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
