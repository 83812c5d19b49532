"""Average, max and adaptive pooling, with windows as index arithmetic, and gradients."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import IndexExpr, Size, contiguous_strides, flatten, unflatten
from engine.ir.loop_ir.index_expr import product as size_of
from engine.ir.loop_ir.ops import LoopIROp, compute_dtype, conjunction
from engine.ir.loop_ir.tensor_def import Coordinates
from engine.ir.static_sizes import are_positive_sizes, static_sizes
from engine.lowering.context import LoweredTensor, LoweringContext, fake_result
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.ops.scatter import scatter_into
from engine.lowering.registry import register_lowering
from engine.lowering.result_strides import symbolic_shape

aten = torch.ops.aten

WindowElement = tuple[Coordinates, LoopIROp | None]
"""Index of an element that a window may contain, and the test if it does (None: always)."""

MAX_WINDOW = 64
"""Largest window whose elements are unrolled in the kernel."""


@dataclass(frozen=True)
class PoolWindow:
    """Pooling windows along one dimension.

    There are ``output_size`` windows of ``kernel_size`` elements over ``input_size`` elements. Windows start at
    ``-padding``, then every ``stride`` elements. The elements of a window have a distance of ``dilation``.
    """

    input_size: Size
    output_size: Size
    kernel_size: int
    stride: int
    padding: int
    dilation: int = 1

    @property
    def is_in_bounds(self) -> bool:
        """True if every window is known to be within the tensor."""
        static = static_sizes((self.input_size, self.output_size))
        if static is None or self.padding != 0:
            return False
        return (static[1] - 1) * self.stride + (self.kernel_size - 1) * self.dilation + 1 <= static[0]

    def start(self, window: IndexExpr) -> IndexExpr:
        """Return the first position of a window; negative in the padding."""
        return window * self.stride - self.padding

    def length(self, b: LoopBuilder, window: IndexExpr, *, with_padding: bool) -> LoopIROp:
        """Return the number of elements of a window, with or without those in the padding."""
        if self.is_in_bounds:
            return b.index_value(IndexExpr({}, self.kernel_size))
        begin = self.start(window)
        math_dtype = b.index_dtype
        end = b.size(self.input_size + self.padding if with_padding else self.input_size, math_dtype)
        end = b.call("minimum", b.index_value(begin + self.kernel_size), end)
        start = b.index_value(begin)
        return end - (start if with_padding else b.call("maximum", start, 0))


def _expand_to_rank(values: Any, count: int) -> list[int]:
    numbers = list(values)
    return [int(v) for v in (numbers * count if len(numbers) == 1 else numbers)]


def _pool_windows(
    a: LoweredTensor,
    windows: Sequence[Size],
    kernel: Any,
    stride: Any,
    padding: Any,
    rank: int,
    gaps: Any = (1,),
    *,
    checks_length: bool = True,
) -> list[PoolWindow]:
    widths = _expand_to_rank(kernel, rank)
    steps, pads = _expand_to_rank(stride or widths, rank), _expand_to_rank(padding, rank)
    if checks_length:
        _check_window_length(widths)
    sides = zip(a.shape[-rank:], windows[-rank:], widths, steps, pads, _expand_to_rank(gaps, rank), strict=True)
    return [PoolWindow(*s) for s in sides]


def _check_window_length(widths: Iterable[int]) -> None:
    if math.prod(widths) > MAX_WINDOW:
        raise NotLowered(
            LoweringFallback.LARGE_WINDOW, f"pooling with windows of more than {MAX_WINDOW} elements has no lowering"
        )


def _in_bounds_test(b: LoopBuilder, positions: Iterable[tuple[IndexExpr, Size, bool]]) -> LoopIROp | None:
    """Test if each ``(index, size, is_known)`` is in bounds; None if no index needs a test.

    ``is_known``: the index is known to be in bounds.
    """
    unknown = ((position, size) for position, size, is_known in positions if not is_known)
    return conjunction(t for position, size in unknown for t in (b.index_ge(position, 0), b.index_lt(position, size)))


def _element(
    b: LoopBuilder, sides: Sequence[PoolWindow], windows: Coordinates, offsets: Sequence[Any]
) -> WindowElement:
    position = tuple(s.start(w) + o * s.dilation for s, w, o in zip(sides, windows, offsets, strict=True))
    return position, _in_bounds_test(
        b, ((p, s.input_size, s.is_in_bounds) for p, s in zip(position, sides, strict=True))
    )


def _divisor(
    b: LoopBuilder, sides: Sequence[PoolWindow], windows: Coordinates, counts_padding: bool, override: int | None
) -> LoopIROp:
    if override is not None:
        return b.constant(override, b.index_dtype)
    lengths = (s.length(b, w, with_padding=counts_padding) for s, w in zip(sides, windows, strict=True))
    return functools.reduce(operator.mul, lengths)


def _masked_sum(
    b: LoopBuilder, parts: Iterable[tuple[LoopIROp | None, Callable[[], LoopIROp]]], math_dtype: torch.dtype
) -> LoopIROp:
    zero = b.constant(0, math_dtype)
    values = (read() if inside is None else b.masked(inside, read, zero) for inside, read in parts)
    return functools.reduce(operator.add, values)


def _avg_pool(
    low: LoweringContext,
    a: LoweredTensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = (0,),
    ceil_mode: bool = False,
    counts_padding: bool = True,
    divisor: int | None = None,
    *,
    rank: int,
) -> LoweredTensor:
    if not a.dtype.is_floating_point:
        raise NotLowered(LoweringFallback.INTEGER_OPERANDS, "pooling of integers has no lowering")
    shape = symbolic_shape(fake_result(low))
    sides = _pool_windows(a, shape, kernel, stride, padding, rank, checks_length=not low.is_cpu)

    def element(b: LoopBuilder, index: Coordinates, offsets: Coordinates) -> WindowElement:
        position, inside = _element(b, sides, index[-rank:], offsets)
        return (*index[:-rank], *position), inside

    def count(b: LoopBuilder, index: Coordinates) -> LoopIROp:
        return _divisor(b, sides, index[-rank:], counts_padding, divisor)

    return _average_windows(low, a, shape, [s.kernel_size for s in sides], element, count)


def _average_windows(
    low: LoweringContext,
    a: LoweredTensor,
    shape: Sequence[Size],
    lengths: Sequence[int],
    element: Callable[[LoopBuilder, Coordinates, Coordinates], WindowElement],
    count: Callable[[LoopBuilder, Coordinates], LoopIROp],
) -> LoweredTensor:
    """Average windows: their elements are unrolled, or reduced in a loop if they are many.

    ``element`` is the element of a window at an offset, ``count`` the number that divides the sum.
    """
    math_dtype = compute_dtype(a.dtype)

    def average(b: LoopBuilder, index: Coordinates, total: LoopIROp) -> LoopIROp:
        return total / b.cast(count(b, index), math_dtype)

    def value(b: LoopBuilder, index: Coordinates, offsets: Coordinates) -> LoopIROp:
        return load_if(b, a, *element(b, index, offsets), 0.0)

    def unrolled(b: LoopBuilder, index: Coordinates) -> LoopIROp:
        offsets = (tuple(IndexExpr({}, o) for o in one) for one in product(*map(range, lengths)))
        return average(b, index, functools.reduce(operator.add, (value(b, index, o) for o in offsets)))

    if math.prod(lengths) <= MAX_WINDOW:
        return low.pointwise(shape, a.dtype, unrolled)
    total = low.reduction("sum", shape, lengths, math_dtype, value, name=f"{low.node_name}_sum")
    return low.pointwise(shape, a.dtype, lambda b, i: average(b, i, total.load(b, i)))


for _rank, _operator in enumerate((aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default), 1):
    register_lowering(_operator)(functools.partial(_avg_pool, rank=_rank))


@register_lowering(aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default)
def avg_pool_backward(
    low: LoweringContext,
    grad: LoweredTensor,
    a: LoweredTensor,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    counts_padding: bool,
    divisor: int | None,
) -> LoweredTensor:
    """Gather each element's gradient from the windows that contain it."""
    rank = pool_rank(low)
    sides = _pool_windows(a, grad.shape, kernel, stride, padding, rank, checks_length=False)
    reach = [-(-s.kernel_size // s.stride) for s in sides]
    _check_window_length(reach)
    math_dtype = compute_dtype(grad.dtype)

    def body(b: LoopBuilder, index: Coordinates) -> LoopIROp:
        lead, position = index[:-rank], index[-rank:]

        def part(back: tuple[int, ...]) -> tuple[LoopIROp | None, Callable[[], LoopIROp]]:
            windows = tuple((p + s.padding).div(s.stride) - k for p, s, k in zip(position, sides, back, strict=True))
            inside = _in_bounds_test(b, ((w, s.output_size, False) for w, s in zip(windows, sides, strict=True)))
            for p, s, w in zip(position, sides, windows, strict=True):
                covered = b.index_lt(p + s.padding - w * s.stride, s.kernel_size)
                inside = covered if inside is None else inside & covered

            def read() -> LoopIROp:
                count = b.cast(_divisor(b, sides, windows, counts_padding, divisor), math_dtype)
                return b.cast(grad.load(b, (*lead, *windows)), math_dtype) / count

            return inside, read

        return _masked_sum(b, (part(k) for k in product(*map(range, reach))), math_dtype)

    return low.pointwise(a.shape, grad.dtype, body)


_POOLS_THREE_DIMENSIONS = frozenset(
    (
        aten.avg_pool3d_backward.default,
        aten.max_pool3d_with_indices.default,
        aten.max_pool3d_with_indices_backward.default,
        aten.adaptive_max_pool3d_backward.default,
        aten._adaptive_avg_pool3d_backward.default,
    )
)


def pool_rank(low: LoweringContext) -> int:
    """Return the number of dimensions that the current operator pools."""
    return 3 if low.current_node is not None and low.current_node.target in _POOLS_THREE_DIMENSIONS else 2


@register_lowering(aten.max_pool2d_with_indices_backward.default, aten.max_pool3d_with_indices_backward.default)
@register_lowering(aten.adaptive_max_pool2d_backward.default, aten.adaptive_max_pool3d_backward.default)
def max_pool_backward(low: LoweringContext, grad: LoweredTensor, a: LoweredTensor, *options: Any) -> LoweredTensor:
    """Add each window's gradient to the element that was its maximum.

    The last of the options are the flat indices of the maxima in each plane, the dimensions that are pooled.
    """
    rank, indices = pool_rank(low), options[-1]
    sizes = a.shape[-rank:]
    math_dtype = compute_dtype(grad.dtype)
    plane = size_of(sizes)
    zeros = low.full(a.shape, grad.dtype, 0.0, name="zeros")

    def write(b: LoopBuilder, index: Coordinates) -> tuple[Coordinates, LoopIROp]:
        flat = b.indirect_index(indices.load(b, index), plane, wraps=False)
        return (*index[:-rank], *unflatten(flat, sizes)), b.cast(grad.load(b, index), math_dtype)

    return scatter_into(low, zeros, grad.shape, write, is_added=True)


@register_lowering(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def max_pool_with_indices(
    low: LoweringContext,
    a: LoweredTensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = (0,),
    dilation: Any = (1,),
    ceil_mode: bool = False,
) -> tuple[LoweredTensor, LoweredTensor]:
    shape = symbolic_shape(fake_result(low)[0])
    rank = pool_rank(low)
    sides = _pool_windows(a, shape, kernel, stride, padding, rank, dilation)

    def elements(b: LoopBuilder, index: Coordinates) -> Iterator[WindowElement]:
        lead, windows = index[:-rank], index[-rank:]
        for offsets in product(*(range(s.kernel_size) for s in sides)):
            position, inside = _element(b, sides, windows, offsets)
            yield (*lead, *position), inside

    return max_of_windows(low, a, rank, elements, lambda b, i: _first_index_in_plane(b, sides, i[-rank:]))


def max_of_windows(
    low: LoweringContext,
    a: LoweredTensor,
    rank: int,
    elements: Callable[[LoopBuilder, Coordinates], Iterable[WindowElement]],
    first: Callable[[LoopBuilder, Coordinates], LoopIROp],
) -> tuple[LoweredTensor, LoweredTensor]:
    """Return each window's maximum (NaN if it contains NaN) and its flat index in the plane.

    The plane is the last ``rank`` dimensions. ``first``: the index if all elements are the lowest number.
    """
    shape, math_dtype = symbolic_shape(fake_result(low)[0]), compute_dtype(a.dtype)
    lowest = float("-inf") if math_dtype.is_floating_point else torch.iinfo(math_dtype).min
    steps = contiguous_strides(a.shape[-rank:])

    def largest(b: LoopBuilder, index: Coordinates) -> tuple[LoopIROp, LoopIROp]:
        best, where = b.constant(lowest, math_dtype), first(b, index)
        for position, inside in elements(b, index):
            value = load_if(b, a, position, inside, lowest)
            is_more = value > best
            if math_dtype.is_floating_point:
                is_more = is_more | value.is_nan()
            best = b.where(is_more, value, best)
            where = b.where(is_more, b.index_value(flatten(position[-rank:], steps)), where)
        return best, where

    def position_of_largest(b: LoopBuilder, index: Coordinates) -> LoopIROp:
        return b.cast(largest(b, index)[1], torch.int64)

    values = low.pointwise(shape, a.dtype, lambda b, i: largest(b, i)[0], name=f"{low.node_name}_value")
    return values, low.pointwise(shape, torch.int64, position_of_largest, name=f"{low.node_name}_place")


def load_if(
    b: LoopBuilder, a: LoweredTensor, position: Coordinates, inside: LoopIROp | None, otherwise: float
) -> LoopIROp:
    """Load an element where ``inside`` holds (None: always), else return ``otherwise``."""
    if inside is None:
        return a.load(b, position)
    return b.masked(inside, lambda: a.load(b, position), b.constant(otherwise, compute_dtype(a.dtype)))


def _first_index_in_plane(b: LoopBuilder, sides: Sequence[PoolWindow], windows: Coordinates) -> LoopIROp:
    """Return the flat index in the plane of a window's first element in bounds.

    It is the index of the maximum if all elements equal the lowest number of the dtype.
    """
    first, *rest = (_first_in_bounds(b, s, w) for s, w in zip(sides, windows, strict=True))
    for side, position in zip(sides[1:], rest, strict=True):
        first = first * b.size(side.input_size, b.index_dtype) + position
    return first


def _first_in_bounds(b: LoopBuilder, side: PoolWindow, window: IndexExpr) -> LoopIROp:
    """Return the first index of a window that is not in the padding."""
    first = side.start(window)
    position, none = b.index_value(first), b.constant(0, b.index_dtype)
    if side.padding == 0:
        return position
    if side.dilation == 1:
        return b.call("maximum", position, none)
    is_before = position < none
    return b.where(is_before, b.index_value(first.mod(side.dilation)), position)


def _max_window_length(size: int, count: int) -> int:
    """Return the length of the longest of ``count`` windows that cover ``size`` elements."""
    return max(-(-(k + 1) * size // count) - k * size // count for k in range(count))


def _pooling_windows(
    a: LoweredTensor, counts: Sequence[Any], *, checks_length: bool = True
) -> list[tuple[int, int, int]]:
    """Return ``(size, count, longest window)`` of each pooled dimension.

    Raises:
        NotLowered: sizes are symbolic, or windows are too large to unroll.
    """
    sizes = a.shape[-len(counts) :]
    if not are_positive_sizes((*sizes, *counts)):
        raise NotLowered(LoweringFallback.SYMBOLIC_SIZE, "pooling with windows of symbolic size has no lowering")
    windows = [(int(n), int(c), _max_window_length(int(n), int(c))) for n, c in zip(sizes, counts, strict=True)]
    if checks_length:
        _check_window_length(length for _, _, length in windows)
    return windows


def _window_bounds(window: IndexExpr, size: int, count: int) -> tuple[IndexExpr, IndexExpr]:
    """Return start and end of a window; windows overlap if sizes do not divide."""
    return (window * size).div(count), ((window + 1) * size + (count - 1)).div(count)


def _window_elements(
    b: LoopBuilder, index: Coordinates, windows: Sequence[tuple[int, int, int]]
) -> Iterator[WindowElement]:
    """Yield the elements that a window may contain."""
    for offsets in product(*(range(length) for _, _, length in windows)):
        yield _adaptive_element(b, index, windows, tuple(IndexExpr({}, o) for o in offsets))


def _adaptive_element(
    b: LoopBuilder, index: Coordinates, windows: Sequence[tuple[int, int, int]], offsets: Coordinates
) -> WindowElement:
    """Return the element of a window at an offset; the longest windows have all offsets."""
    lead, outer = index[: -len(windows)], index[-len(windows) :]
    ends = [_window_bounds(w, size, count) for w, (size, count, _) in zip(outer, windows, strict=True)]
    position = tuple(start + o for (start, _), o in zip(ends, offsets, strict=True))
    parts = zip(position, ends, offsets, windows, strict=True)
    # Every window has at least ``size // count`` elements, and at least one.
    uncertain = (
        (p, end)
        for p, (_, end), offset, (size, count, _) in parts
        if size % count and not (offset.is_constant and offset.const < max(size // count, 1))
    )
    return (*lead, *position), conjunction(b.index_value(p) < b.index_value(end) for p, end in uncertain)


def _element_count(b: LoopBuilder, index: Coordinates, windows: Sequence[tuple[int, int, int]]) -> LoopIROp:
    """Return the number of elements of a window."""
    bounds = [_window_bounds(w, n, c) for w, (n, c, _) in zip(index[-len(windows) :], windows, strict=True)]
    return functools.reduce(operator.mul, (b.index_value(end) - b.index_value(start) for start, end in bounds))


@register_lowering(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool(low: LoweringContext, a: LoweredTensor, size: Sequence[Any]) -> LoweredTensor:
    if not a.dtype.is_floating_point:
        raise NotLowered(LoweringFallback.INTEGER_OPERANDS, "pooling of integers has no lowering")
    windows = _pooling_windows(a, size, checks_length=not low.is_cpu)
    lengths = [length for _, _, length in windows]
    if all(n % c == 0 for n, c, _ in windows):
        return _avg_pool(low, a, lengths, rank=len(windows))
    return _average_windows(
        low,
        a,
        symbolic_shape(fake_result(low)),
        lengths,
        lambda b, index, offsets: _adaptive_element(b, index, windows, offsets),
        lambda b, index: _element_count(b, index, windows),
    )


@register_lowering(aten._adaptive_avg_pool2d_backward.default, aten._adaptive_avg_pool3d_backward.default)
def adaptive_avg_pool_backward(low: LoweringContext, grad: LoweredTensor, a: LoweredTensor) -> LoweredTensor:
    """Gather each element's gradient from the windows that contain it.

    They are the windows of a pooling the other way round.
    """
    containing = _pooling_windows(grad, a.shape[-pool_rank(low) :])
    windows, math_dtype = [(n, c, 0) for c, n, _ in containing], compute_dtype(grad.dtype)

    def body(b: LoopBuilder, index: Coordinates) -> LoopIROp:
        def share(window: Coordinates) -> LoopIROp:
            count = b.cast(_element_count(b, window, windows), math_dtype)
            return b.cast(grad.load(b, window), math_dtype) / count

        parts = ((inside, functools.partial(share, w)) for w, inside in _window_elements(b, index, containing))
        return _masked_sum(b, parts, math_dtype)

    return low.pointwise(a.shape, grad.dtype, body)


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
