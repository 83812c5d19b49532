"""Adaptive average and max pooling, and the gradient of max pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import IndexExpr
from engine.ir.loop_ir.ops import LoopIROp, compute_dtype
from engine.ir.loop_ir.tensor_def import Coordinates
from engine.ir.static_sizes import are_positive_sizes
from engine.lowering.context import LoweredTensor, LoweringContext, fake_result
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.ops.pooling import MAX_WINDOW, max_pool_backward, pool_rank
from engine.lowering.promotion import check_supported_dtype
from engine.lowering.registry import register_lowering
from engine.lowering.result_strides import symbolic_shape

aten = torch.ops.aten

Read = Callable[[LoopBuilder, Coordinates, LoopIROp], LoopIROp]


def _max_window_length(size: int, count: int) -> int:
    """Return the length of the longest of ``count`` windows that cover ``size`` elements."""
    return max(-(-(k + 1) * size // count) - k * size // count for k in range(count))


def _pooling_windows(a: LoweredTensor, counts: Sequence[Any]) -> list[tuple[int, int, int]]:
    """Return ``(size, count, longest window)`` of each pooled dimension.

    Raises:
        NotLowered: sizes are symbolic, or windows are too large.
    """
    check_supported_dtype(a)
    sizes = a.shape[-len(counts) :]
    if not are_positive_sizes((*sizes, *counts)):
        raise NotLowered(LoweringFallback.SYMBOLIC_SIZE, "pooling with windows of symbolic size has no lowering")
    found = [(int(n), int(c), _max_window_length(int(n), int(c))) for n, c in zip(sizes, counts, strict=True)]
    total = 1
    for _, _, length in found:
        total *= length
    if total > MAX_WINDOW:
        raise NotLowered(
            LoweringFallback.LARGE_WINDOW, f"pooling with windows of more than {MAX_WINDOW} elements has no lowering"
        )
    return found


def _window_bounds(window: IndexExpr, size: int, count: int) -> tuple[IndexExpr, IndexExpr]:
    """Return start and end of a window; windows overlap if sizes do not divide."""
    return (window * size).div(count), ((window + 1) * size + (count - 1)).div(count)


def _window_elements(
    b: LoopBuilder, index: Coordinates, windows: Sequence[tuple[int, int, int]]
) -> list[tuple[Coordinates, LoopIROp | None]]:
    """Return the elements that a window may contain, each with a test (None: always)."""
    rank = len(windows)
    lead, outer = index[:-rank], index[-rank:]
    ends = [_window_bounds(w, size, count) for w, (size, count, _) in zip(outer, windows, strict=True)]
    found: list[tuple[Coordinates, LoopIROp | None]] = []
    for offsets in product(*(range(length) for _, _, length in windows)):
        position = tuple(start + o for (start, _), o in zip(ends, offsets, strict=True))
        inside: LoopIROp | None = None
        for p, (_, end), offset, (size, count, _) in zip(position, ends, offsets, windows, strict=True):
            if offset < size // count:  # Every window has at least this many elements.
                continue
            test = b.call("lt", b.index_value(p), b.index_value(end), dtype=torch.bool)
            inside = test if inside is None else b.logical_and(inside, test)
        found.append(((*lead, *position), inside))
    return found


@register_lowering(aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool3d(low: LoweringContext, a: LoweredTensor, size: Sequence[Any]) -> LoweredTensor:
    if not a.dtype.is_floating_point:
        raise NotLowered(LoweringFallback.INTEGER_OPERANDS, "pooling of integers has no lowering")
    windows, math_dtype = _pooling_windows(a, size), compute_dtype(a.dtype)

    def body(b: LoopBuilder, index: Coordinates) -> LoopIROp:
        zero, total, count = b.constant(0.0, math_dtype), b.constant(0.0, math_dtype), b.constant(1, b.index_dtype)
        for position, inside in _window_elements(b, index, windows):
            value = a.load(b, position) if inside is None else b.masked(inside, lambda p=position: a.load(b, p), zero)  # type: ignore[misc]
            total = b.call("add", total, value)
        for w, (n, c, _) in zip(index[-3:], windows, strict=True):
            start, end = _window_bounds(w, n, c)
            count = b.call("mul", count, b.call("sub", b.index_value(end), b.index_value(start)))
        return b.call("div", total, b.cast(count, math_dtype))

    return low.pointwise(symbolic_shape(fake_result(low)), a.dtype, body)


@register_lowering(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(
    low: LoweringContext, a: LoweredTensor, size: Sequence[Any]
) -> tuple[LoweredTensor, LoweredTensor]:
    """Return the maximum of each window (NaN if there is one) and its flat index in the input."""
    windows, math_dtype = _pooling_windows(a, size), compute_dtype(a.dtype)
    shape = symbolic_shape(fake_result(low)[0])
    lowest = float("-inf") if math_dtype.is_floating_point else torch.iinfo(math_dtype).min
    rank = len(windows)

    def flat(position: Coordinates) -> IndexExpr:
        total = IndexExpr()
        for p, (n, _, _) in zip(position[-rank:], windows, strict=True):
            total = total * n + p
        return total

    def largest(b: LoopBuilder, index: Coordinates) -> tuple[LoopIROp, LoopIROp]:
        positions = _window_elements(b, index, windows)
        best, where = b.constant(lowest, math_dtype), b.index_value(flat(positions[0][0]))
        for position, inside in positions:
            value = (
                a.load(b, position)
                if inside is None
                else b.masked(inside, lambda p=position: a.load(b, p), b.constant(lowest, math_dtype))  # type: ignore[misc]
            )
            is_more = b.call("gt", value, best, dtype=torch.bool)
            if math_dtype.is_floating_point:
                is_more = b.call("or", is_more, b.call("ne", value, value, dtype=torch.bool), dtype=torch.bool)
            best, where = b.where(is_more, value, best), b.where(is_more, b.index_value(flat(position)), where)
        return best, where

    name = low.current_node.name if low.current_node is not None else "max_pool"
    values = low.pointwise(shape, a.dtype, lambda b, i: largest(b, i)[0], name=f"{name}_value")
    positions = low.pointwise(
        shape, torch.int64, lambda b, i: b.cast(largest(b, i)[1], torch.int64), name=f"{name}_place"
    )
    return values, positions


@register_lowering(aten.adaptive_max_pool2d_backward.default, aten.adaptive_max_pool3d_backward.default)
def adaptive_max_pool_backward(
    low: LoweringContext, grad: LoweredTensor, a: LoweredTensor, indices: LoweredTensor
) -> LoweredTensor:
    """Add each window's gradient to the element that was its maximum."""
    return max_pool_backward(low, grad, a, indices, pool_rank(low))
