"""Adaptive average and max pooling, and the gradient of max pooling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import IndexExpr, contiguous_strides, flatten
from engine.ir.loop_ir.ops import LoopIROp, compute_dtype
from engine.ir.loop_ir.tensor_def import Coordinates
from engine.ir.static_sizes import are_positive_sizes
from engine.lowering.context import LoweredTensor, LoweringContext, fake_result
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.ops.pooling import MAX_WINDOW, WindowElement, load_if, max_of_windows, max_pool_backward, pool_rank
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
    windows = [(int(n), int(c), _max_window_length(int(n), int(c))) for n, c in zip(sizes, counts, strict=True)]
    total = 1
    for _, _, length in windows:
        total *= length
    if total > MAX_WINDOW:
        raise NotLowered(
            LoweringFallback.LARGE_WINDOW, f"pooling with windows of more than {MAX_WINDOW} elements has no lowering"
        )
    return windows


def _window_bounds(window: IndexExpr, size: int, count: int) -> tuple[IndexExpr, IndexExpr]:
    """Return start and end of a window; windows overlap if sizes do not divide."""
    return (window * size).div(count), ((window + 1) * size + (count - 1)).div(count)


def _window_elements(
    b: LoopBuilder, index: Coordinates, windows: Sequence[tuple[int, int, int]]
) -> Iterator[WindowElement]:
    """Yield the elements that a window may contain."""
    rank = len(windows)
    lead, outer = index[:-rank], index[-rank:]
    ends = [_window_bounds(w, size, count) for w, (size, count, _) in zip(outer, windows, strict=True)]
    for offsets in product(*(range(length) for _, _, length in windows)):
        position = tuple(start + o for (start, _), o in zip(ends, offsets, strict=True))
        inside: LoopIROp | None = None
        for p, (_, end), offset, (size, count, _) in zip(position, ends, offsets, windows, strict=True):
            if offset < size // count:  # Every window has at least this many elements.
                continue
            test = b.index_value(p) < b.index_value(end)
            inside = test if inside is None else inside & test
        yield (*lead, *position), inside


@register_lowering(aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool3d(low: LoweringContext, a: LoweredTensor, size: Sequence[Any]) -> LoweredTensor:
    if not a.dtype.is_floating_point:
        raise NotLowered(LoweringFallback.INTEGER_OPERANDS, "pooling of integers has no lowering")
    windows, math_dtype = _pooling_windows(a, size), compute_dtype(a.dtype)

    def body(b: LoopBuilder, index: Coordinates) -> LoopIROp:
        total, count = b.constant(0.0, math_dtype), b.constant(1, b.index_dtype)
        for position, inside in _window_elements(b, index, windows):
            total = total + load_if(b, a, position, inside, 0.0)
        for w, (n, c, _) in zip(index[-3:], windows, strict=True):
            start, end = _window_bounds(w, n, c)
            count = count * (b.index_value(end) - b.index_value(start))
        return total / b.cast(count, math_dtype)

    return low.pointwise(symbolic_shape(fake_result(low)), a.dtype, body)


@register_lowering(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(
    low: LoweringContext, a: LoweredTensor, size: Sequence[Any]
) -> tuple[LoweredTensor, LoweredTensor]:
    windows = _pooling_windows(a, size)
    rank, steps = len(windows), contiguous_strides(a.shape[-len(windows) :])

    def first(b: LoopBuilder, index: Coordinates) -> LoopIROp:
        starts = [_window_bounds(w, size, count)[0] for w, (size, count, _) in zip(index[-rank:], windows, strict=True)]
        return b.index_value(flatten(starts, steps))

    return max_of_windows(low, a, rank, lambda b, i: _window_elements(b, i, windows), first)


@register_lowering(aten.adaptive_max_pool2d_backward.default, aten.adaptive_max_pool3d_backward.default)
def adaptive_max_pool_backward(
    low: LoweringContext, grad: LoweredTensor, a: LoweredTensor, indices: LoweredTensor
) -> LoweredTensor:
    """Add each window's gradient to the element that was its maximum."""
    return max_pool_backward(low, grad, a, indices, pool_rank(low))
