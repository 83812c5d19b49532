"""Pooling: windows as index arithmetic, and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from engine.ir.index import Index, Size, contiguous_strides, flatten, unflatten
from engine.ir.index import product as size_of
from engine.ir.loops import Builder, Coordinates, Op, compute_dtype
from engine.lowering.ops.scatters import scattered
from engine.lowering.table import Lowering, NotLowered, Tensor, check_loopable, lowers, result_value, sizes_of

aten = torch.ops.aten

MAX_WINDOW = 64
"""Elements of a window up to which they are read one after the other."""


@dataclass(frozen=True)
class Side:
    """Windows along one dimension: ``size`` elements there, ``count`` windows of ``width``, every ``step``, from ``-padding`` on.

    The elements of a window are ``gap`` apart.
    """

    size: Size
    count: Size
    width: int
    step: int
    padding: int
    gap: int = 1

    @property
    def is_inside(self) -> bool:
        """Whether every window is known to lie inside the tensor."""
        return (
            self.padding == 0
            and isinstance(self.size, int)
            and isinstance(self.count, int)
            and (self.count - 1) * self.step + (self.width - 1) * self.gap + 1 <= self.size
        )

    def first(self, window: Index) -> Index:
        """Where a window begins."""
        return window * self.step - self.padding

    def length(self, b: Builder, window: Index, *, with_padding: bool) -> Op:
        """How many elements of a window count."""
        if self.is_inside:
            return b.position(Index({}, self.width))
        begin = self.first(window)
        held = b.index_dtype
        end = b.size(self.size + self.padding if with_padding else self.size, held)
        end = b.call("minimum", b.position(begin + self.width), end)
        start = b.position(begin)
        return b.call("sub", end, start if with_padding else b.call("maximum", start, b.constant(0, held)))


def _each(values: Any, count: int) -> list[int]:
    given = list(values)
    return [int(v) for v in (given * count if len(given) == 1 else given)]


def _sides(
    a: Tensor, windows: Sequence[Size], kernel: Any, stride: Any, padding: Any, rank: int, gaps: Any = (1,)
) -> list[Side]:
    check_loopable(a)
    widths = _each(kernel, rank)
    steps, pads = _each(stride or widths, rank), _each(padding, rank)
    total = 1
    for width in widths:
        total *= width
    if total > MAX_WINDOW:
        raise NotLowered(f"windows of more than {MAX_WINDOW} elements are pooled by ATen")
    sides = zip(a.shape[-rank:], windows[-rank:], widths, steps, pads, _each(gaps, rank), strict=True)
    return [Side(*s) for s in sides]


def _inside(b: Builder, places: Iterable[tuple[Index, Size, bool]]) -> Op | None:
    """Whether every (place, size) is inside; those that are known to be are not tested."""
    test: Op | None = None
    for place, size, is_known in places:
        for part in () if is_known else (b.at_least(place, 0), b.below(place, size)):
            test = part if test is None else b.both(test, part)
    return test


def _divisor(b: Builder, sides: Sequence[Side], windows: Coordinates, counts_padding: bool, given: int | None) -> Op:
    if given is not None:
        return b.constant(given, b.index_dtype)
    total: Op | None = None
    for side, window in zip(sides, windows, strict=True):
        length = side.length(b, window, with_padding=counts_padding)
        total = length if total is None else b.call("mul", total, length)
    assert total is not None
    return total


def _summed(b: Builder, parts: Iterable[tuple[Op | None, Callable[[], Op]]], held: torch.dtype) -> Op:
    total: Op | None = None
    zero = b.constant(0, held)
    for inside, read in parts:
        value = read() if inside is None else b.masked(inside, read, zero)
        total = value if total is None else b.call("add", total, value)
    return zero if total is None else total


def _average(
    low: Lowering,
    a: Tensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = (0,),
    ceil_mode: bool = False,
    counts_padding: bool = True,
    divisor: int | None = None,
    *,
    rank: int,
) -> Tensor:
    if not a.dtype.is_floating_point:
        raise NotLowered("pooling of whole numbers is done by ATen")
    shape = sizes_of(result_value(low))
    sides = _sides(a, shape, kernel, stride, padding, rank)
    held = compute_dtype(a.dtype)

    def body(b: Builder, index: Coordinates) -> Op:
        lead, windows = index[:-rank], index[-rank:]

        def part(offsets: tuple[int, ...]) -> tuple[Op | None, Callable[[], Op]]:
            place = tuple(s.first(w) + o for s, w, o in zip(sides, windows, offsets, strict=True))
            inside = _inside(b, ((p, s.size, s.is_inside) for p, s in zip(place, sides, strict=True)))
            return inside, lambda: a.at(b, (*lead, *place))

        total = _summed(b, (part(o) for o in product(*(range(s.width) for s in sides))), held)
        return b.call("div", total, b.cast(_divisor(b, sides, windows, counts_padding, divisor), held))

    return low.pointwise(shape, a.dtype, body)


@lowers(aten.avg_pool1d.default)
def avg_pool1d(low: Lowering, a: Tensor, *args: Any) -> Tensor:
    return _average(low, a, *args, rank=1)


@lowers(aten.avg_pool2d.default)
def avg_pool2d(low: Lowering, a: Tensor, *args: Any) -> Tensor:
    return _average(low, a, *args, rank=2)


@lowers(aten.avg_pool3d.default)
def avg_pool3d(low: Lowering, a: Tensor, *args: Any) -> Tensor:
    return _average(low, a, *args, rank=3)


@lowers(aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default)
def avg_pool_backward(
    low: Lowering,
    grad: Tensor,
    a: Tensor,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    counts_padding: bool,
    divisor: int | None,
) -> Tensor:
    """Each element gathers from the windows that it lies in."""
    rank = _planes(low)
    sides = _sides(a, grad.shape, kernel, stride, padding, rank)
    held = compute_dtype(grad.dtype)

    def body(b: Builder, index: Coordinates) -> Op:
        lead, place = index[:-rank], index[-rank:]

        def part(back: tuple[int, ...]) -> tuple[Op | None, Callable[[], Op]]:
            windows = tuple((p + s.padding).div(s.step) - k for p, s, k in zip(place, sides, back, strict=True))
            inside = _inside(b, ((w, s.count, False) for w, s in zip(windows, sides, strict=True)))
            for p, s, w in zip(place, sides, windows, strict=True):
                covered = b.below(p + s.padding - w * s.step, s.width)
                inside = covered if inside is None else b.both(inside, covered)

            def read() -> Op:
                count = b.cast(_divisor(b, sides, windows, counts_padding, divisor), held)
                return b.call("div", b.cast(grad.at(b, (*lead, *windows)), held), count)

            return inside, read

        reach = (range(-(-s.width // s.step)) for s in sides)
        return _summed(b, (part(k) for k in product(*reach)), held)

    return low.pointwise(a.shape, grad.dtype, body)


def _planes(low: Lowering) -> int:
    """Over how many dimensions the operator at work pools, which its name says."""
    return 3 if low.node is not None and "3d" in str(low.node.target) else 2


@lowers(aten.max_pool2d_with_indices_backward.default, aten.max_pool3d_with_indices_backward.default)
def max_pool_with_indices_backward(
    low: Lowering,
    grad: Tensor,
    a: Tensor,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """Each window's gradient is added to the element that was its largest."""
    return added_where_largest(low, grad, a, indices, _planes(low))


def added_where_largest(low: Lowering, grad: Tensor, a: Tensor, indices: Tensor, rank: int) -> Tensor:
    """A gradient added at places in planes over the last ``rank`` dimensions."""
    check_loopable(grad, a)
    sizes = a.shape[-rank:]
    held = compute_dtype(grad.dtype)
    plane = size_of(sizes)
    zeros = low.pointwise(a.shape, grad.dtype, lambda b, i: b.constant(0.0, grad.dtype), name="zeros")

    def write(b: Builder, index: Coordinates) -> tuple[Coordinates, Op]:
        flat = b.picked(indices.at(b, index), plane, wraps=False)
        return (*index[:-rank], *unflatten(flat, sizes)), b.cast(grad.at(b, index), held)

    return scattered(low, zeros, grad.shape, write, is_added=True)


@lowers(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def max_pool_with_indices(
    low: Lowering,
    a: Tensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = (0,),
    dilation: Any = (1,),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """The largest element of each window (NaN if there is one), and where it lies in its plane."""
    shape = sizes_of(result_value(low)[0])
    rank = _planes(low)
    sides = _sides(a, shape, kernel, stride, padding, rank, dilation)
    held = compute_dtype(a.dtype)
    lowest = float("-inf") if held.is_floating_point else torch.iinfo(held).min
    steps = contiguous_strides(a.shape[-rank:])

    def largest(b: Builder, index: Coordinates) -> tuple[Op, Op]:
        lead, windows = index[:-rank], index[-rank:]
        best, where = b.constant(lowest, held), _first_place(b, sides, windows)
        for offsets in product(*(range(s.width) for s in sides)):
            place = tuple(s.first(w) + o * s.gap for s, w, o in zip(sides, windows, offsets, strict=True))
            inside = _inside(b, ((p, s.size, s.is_inside) for p, s in zip(place, sides, strict=True)))
            value = a.at(b, (*lead, *place)) if inside is None else _guarded(b, a, (*lead, *place), inside, lowest)
            is_more = b.call("gt", value, best, dtype=torch.bool)
            if held.is_floating_point:
                is_more = b.call("or", is_more, b.call("ne", value, value, dtype=torch.bool), dtype=torch.bool)
            best = b.where(is_more, value, best)
            where = b.where(is_more, b.position(flatten(place, steps)), where)
        return best, where

    name = low.node.name if low.node is not None else "max_pool"
    values = low.pointwise(shape, a.dtype, lambda b, i: largest(b, i)[0], name=f"{name}_value")
    places = low.pointwise(shape, torch.int64, lambda b, i: b.cast(largest(b, i)[1], torch.int64), name=f"{name}_place")
    return values, places


def _guarded(b: Builder, a: Tensor, place: Coordinates, inside: Op, otherwise: float) -> Op:
    return b.masked(inside, lambda: a.at(b, place), b.constant(otherwise, compute_dtype(a.dtype)))


def _first_place(b: Builder, sides: Sequence[Side], windows: Coordinates) -> Op:
    """Where the first element of a window lies in its plane: the answer while nothing is larger than nothing."""
    first, *rest = (_first_inside(b, s, w) for s, w in zip(sides, windows, strict=True))
    for side, place in zip(sides[1:], rest, strict=True):
        first = b.call("add", b.call("mul", first, b.size(side.size, b.index_dtype)), place)
    return first


def _first_inside(b: Builder, side: Side, window: Index) -> Op:
    """The first place of a window that is not in the padding."""
    first = side.first(window)
    place, none = b.position(first), b.constant(0, b.index_dtype)
    if side.padding == 0:
        return place
    if side.gap == 1:
        return b.call("maximum", place, none)
    is_before = b.call("lt", place, none, dtype=torch.bool)
    return b.where(is_before, b.position(first.mod(side.gap)), place)
