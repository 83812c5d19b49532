"""Each element collects what belongs to it: extremes, products and means of rows named by an index, counts in bins, masked copies.

Scattering would need atomic operations that no target has. Here every element of the result looks through all candidates, which is
right in any order and costs their number times the results: only as much as ``MOST`` comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.ir.index import Index, Size, contiguous_strides, flatten, is_same, product, unflatten
from engine.ir.loops import Builder, Coordinates, Op, compute_dtype
from engine.lowering.ops.reductions import extreme, neutral_value, reduce
from engine.lowering.ops.scatters import ATOMIC, along, rows_put, scattered
from engine.lowering.ops.views import as_row, broadcast_to, reshape
from engine.lowering.table import (
    Lowering,
    NotLowered,
    Tensor,
    check_loopable,
    element,
    lowers,
    positive_dim,
    result_value,
    sizes_of,
)

aten = torch.ops.aten

MOST = 1 << 24
"""Comparisons of a place with a candidate that one operator may cost."""
LONGEST_MASK = 16_384
"""Elements of a mask whose running count a kernel holds whole."""
KINDS = {"prod": "prod", "multiply": "prod", "amax": "max", "amin": "min", "mean": "sum", "sum": "sum", "add": "sum"}

Hits = Callable[[Builder, Coordinates, Index], tuple[Op, Callable[[], Op]]]
"""``(builder, place, candidate) -> (whether it belongs there, its value)``."""


def _collected(low: Lowering, a: Tensor, count: Size, hits: Hits, reduction: str, *, include_self: bool) -> Tensor:
    """``a`` with the candidates of each element put together with it, or put in its place."""
    total = product((*a.shape, count))
    if not isinstance(total, int) or total > MOST:
        raise NotLowered("so many candidates for so many places are put together by ATen")
    check_loopable(a)
    if a.dtype is torch.bool:
        raise NotLowered("truth values are put together by ATen")
    kind, held = KINDS[reduction], compute_dtype(a.dtype)
    nothing = neutral_value(kind, held)
    rank, name = len(a.shape), low.node.name if low.node is not None else "collected"

    def candidate(b: Builder, i: Coordinates) -> Op:
        hit, value = hits(b, i[:rank], i[rank])
        return b.where(hit, b.cast(value(), held), b.constant(nothing, held))

    def counted(b: Builder, i: Coordinates) -> Op:
        return b.cast(hits(b, i[:rank], i[rank])[0], torch.int32)

    places = low.pointwise((*a.shape, count), held, candidate, name=f"{name}_candidates")
    if reduction in ("amax", "amin") and held.is_floating_point:
        best = extreme(low, kind, places, (rank,), False, name=f"{name}_best")
    else:
        best = reduce(low, kind, places, (rank,), False, held, places.at, name=f"{name}_best")
    found = low.pointwise((*a.shape, count), torch.int32, counted, name=f"{name}_found")
    number = reduce(low, "sum", found, (rank,), False, torch.int32, found.at, name=f"{name}_count")

    def body(b: Builder, i: Coordinates) -> Op:
        own, new, many = b.cast(a.at(b, i), held), best.at(b, i), number.at(b, i)
        joined = _put_together(b, reduction, own, new) if include_self else new
        if reduction == "mean":
            share = b.cast(b.call("add", many, b.constant(1, torch.int32)) if include_self else many, held)
            joined = _divided(b, joined, share)
        return b.where(b.call("eq", many, b.constant(0, torch.int32), dtype=torch.bool), own, joined)

    return low.pointwise(a.shape, a.dtype, body)


def _put_together(b: Builder, reduction: str, own: Op, new: Op) -> Op:
    return b.call({"prod": "mul", "max": "maximum", "min": "minimum", "sum": "add"}[KINDS[reduction]], own, new)


def _divided(b: Builder, total: Op, count: Op) -> Op:
    """A mean; of whole numbers rounded down."""
    if total.dtype.is_floating_point:
        return b.call("div", total, count)
    quotient, rest = b.call("truncdiv", total, count), b.call("rem", total, count)
    is_below = b.call("lt", rest, b.constant(0, total.dtype), dtype=torch.bool)
    return b.where(is_below, b.call("sub", quotient, b.constant(1, total.dtype)), quotient)


def _matches(b: Builder, index: Op, place: Index, size: Size) -> Op:
    """Whether an index, counted from the end where negative, names a place."""
    wide = b.cast(index, torch.int64)
    is_negative = b.call("lt", wide, b.constant(0, torch.int64), dtype=torch.bool)
    wrapped = b.where(is_negative, b.call("add", wide, b.size(size, torch.int64)), wide)
    return b.call("eq", wrapped, b.cast(b.position(place), torch.int64), dtype=torch.bool)


@lowers(aten.index_reduce.default)
def index_reduce(
    low: Lowering, a: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    row, rows, places, dim = as_row(a), as_row(source), as_row(index), positive_dim(dim, len(a.shape))
    if places.shape[0] == 0:
        raise NotLowered("writing nothing at all is done by ATen")

    def hits(b: Builder, i: Coordinates, k: Index) -> tuple[Op, Callable[[], Op]]:
        hit = _matches(b, places.at(b, (k,)), i[dim], row.shape[dim])
        return hit, lambda: rows.at(b, (*i[:dim], k, *i[dim + 1 :]))

    return reshape(_collected(low, row, places.shape[0], hits, reduce, include_self=include_self), a.shape)


@lowers(aten.index_add.default)
def index_add(low: Lowering, a: Tensor, dim: int, indices: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    """By atomic additions; what no target adds atomically, each element collects."""
    if alpha == 1 and a.dtype in (torch.int8, torch.int16, torch.uint8):
        return index_reduce(low, a, dim, indices, source, "sum")  # type: ignore[no-any-return]
    return rows_put(low, a, dim, indices, source, alpha, is_added=True)


def collected_along(
    low: Lowering, a: Tensor, dim: int, index: Tensor, source: Any, reduction: str, *, include_self: bool = True
) -> Tensor:
    """``scatter_reduce`` along a dimension: an index for each candidate."""
    if 0 in index.shape:
        raise NotLowered("writing nothing at all is done by ATen")
    if not a.shape or not index.shape:
        given = as_row(source) if isinstance(source, Tensor) else source
        row = collected_along(low, as_row(a), 0, as_row(index), given, reduction, include_self=include_self)
        return reshape(row, a.shape)
    dim = positive_dim(dim, len(a.shape))
    others = [d for d in range(len(a.shape)) if d != dim and not is_same(a.shape[d], index.shape[d])]
    value = source.at if isinstance(source, Tensor) else element(source, a.dtype, index.shape)

    def hits(b: Builder, i: Coordinates, k: Index) -> tuple[Op, Callable[[], Op]]:
        place = (*i[:dim], k, *i[dim + 1 :])
        inside: Op | None = None
        for d in others:
            test = b.below(i[d], index.shape[d])
            inside = test if inside is None else b.both(inside, test)
        if inside is None:
            return _matches(b, index.at(b, place), i[dim], a.shape[dim]), lambda: value(b, place)
        named = b.masked(inside, lambda: b.cast(index.at(b, place), torch.int64), b.constant(-(1 << 40), torch.int64))
        nothing = b.constant(0, a.dtype)
        return (
            _matches(b, named, i[dim], a.shape[dim]),
            lambda: b.masked(inside, lambda: b.cast(value(b, place), a.dtype), nothing),
        )

    return _collected(low, a, index.shape[dim], hits, reduction, include_self=include_self)


@lowers(aten.scatter_add.default)
def scatter_add(low: Lowering, a: Tensor, dim: int, indices: Tensor, source: Tensor) -> Tensor:
    return scatter_reduce(low, a, dim, indices, source, "sum")  # type: ignore[no-any-return]


@lowers(aten.scatter_reduce.two)
def scatter_reduce(
    low: Lowering, a: Tensor, dim: int, indices: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Sums and means by atomic additions; what no target puts together atomically, each element collects."""
    held = compute_dtype(a.dtype)
    if reduce not in ("sum", "mean") or held not in ATOMIC or (reduce == "mean" and not held.is_floating_point):
        return collected_along(low, a, dim, indices, source, reduce, include_self=include_self)
    start = a
    if not include_self:
        start = along(low, a, dim, indices, lambda b, i: b.constant(0, a.dtype), is_added=False)
    total = along(low, start, dim, indices, lambda b, i: b.cast(source.at(b, i), held), is_added=True)
    if reduce == "sum":
        return total
    none = low.pointwise(a.shape, held, lambda b, i: b.constant(1 if include_self else 0, held), name="count_start")
    count = along(low, none, dim, indices, lambda b, i: b.constant(1, held), is_added=True)

    def mean(b: Builder, i: Coordinates) -> Op:
        one = b.constant(1, held)
        return b.call("div", total.at(b, i), b.call("maximum", count.at(b, i), one))

    return low.pointwise(a.shape, a.dtype, mean)


@lowers(aten.scatter.reduce, aten.scatter.value_reduce)
def scatter_with_reduction(low: Lowering, a: Tensor, dim: int, index: Tensor, source: Any, *, reduce: str) -> Tensor:
    return collected_along(low, a, dim, index, source, reduce)


@lowers(aten.masked_scatter.default)
def masked_scatter(low: Lowering, a: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The elements of the source one after the other where the mask is true: its running count says which."""
    shape = sizes_of(result_value(low))
    check_loopable(a, source)
    count = product(shape)
    if not isinstance(count, int) or count > LONGEST_MASK:
        raise NotLowered("the running count along a long or symbolic mask is computed by ATen")
    row = reshape(broadcast_to(mask, shape), (count,))
    name = low.node.name if low.node is not None else "masked"
    flags = low.pointwise((count,), torch.int32, lambda b, i: b.cast(row.at(b, i), torch.int32), name=f"{name}_flags")
    running = low.scan("sum", (count,), 0, torch.int32, flags.at) if count > 1 else flags
    given, kept = product(source.shape), broadcast_to(a, shape)
    pool = reshape(source, (given,))

    def body(b: Builder, i: Coordinates) -> Op:
        flat = flatten(i, contiguous_strides(shape))
        is_set = row.at(b, (flat,))
        place = b.call("sub", running.at(b, (flat,)), b.constant(1, torch.int32))
        chosen = b.masked(is_set, lambda: pool.at(b, (b.picked(place, given, wraps=False),)), b.constant(0, a.dtype))
        return b.where(is_set, chosen, kept.at(b, i))

    return low.pointwise(shape, a.dtype, body)


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(low: Lowering, a: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    check_loopable(a, source)
    first, second = dim1 % len(a.shape), dim2 % len(a.shape)
    value = element(source, a.dtype, source.shape)

    def body(b: Builder, i: Coordinates) -> Op:
        here = b.call("eq", b.position(i[first] + offset), b.position(i[second]), dtype=torch.bool)
        rest = tuple(p for d, p in enumerate(i) if d not in (first, second))
        along = i[second] if offset < 0 else i[first]
        return b.masked(here, lambda: value(b, (*rest, along)), a.at(b, i))

    return low.pointwise(a.shape, a.dtype, body)


@lowers(aten.histc.default)
def histc(low: Lowering, a: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements lie in each of equal bins; between the extremes of the data where no other bounds are given."""
    check_loopable(a)
    if not all(isinstance(v, (int, float)) for v in (min, max)) or 0 in a.shape:
        raise NotLowered("bins with bounds that follow from sizes are filled by ATen")
    held = compute_dtype(a.dtype) if a.dtype.is_floating_point else torch.float32
    dims = tuple(range(len(a.shape)))
    name = low.node.name if low.node is not None else "histc"
    if min == max:
        least = extreme(low, "min", a, dims, False, name=f"{name}_least")
        most = extreme(low, "max", a, dims, False, name=f"{name}_most")
    zeros = low.pointwise((bins,), a.dtype, lambda b, i: b.constant(0, a.dtype), name="zeros")

    def bounds(b: Builder) -> tuple[Op, Op]:
        if min != max:
            return b.constant(float(min), held), b.constant(float(max), held)
        if min != 0:
            return b.constant(min - 1.0, held), b.constant(max + 1.0, held)
        low_end, high_end = b.cast(least.at(b, ()), held), b.cast(most.at(b, ()), held)
        is_flat, one = b.call("eq", low_end, high_end, dtype=torch.bool), b.constant(1.0, held)
        return (
            b.where(is_flat, b.call("sub", low_end, one), low_end),
            b.where(is_flat, b.call("add", high_end, one), high_end),
        )

    def write(b: Builder, i: Coordinates) -> tuple[Coordinates, Op]:
        value, (start, end) = b.cast(a.at(b, i), held), bounds(b)
        share = b.call("mul", b.call("sub", value, start), b.constant(float(bins), held))
        place = b.cast(b.call("div", share, b.call("sub", end, start)), torch.int64)
        place = b.call("minimum", place, b.constant(bins - 1, torch.int64))
        inside = b.both(b.call("ge", value, start, dtype=torch.bool), b.call("le", value, end, dtype=torch.bool))
        outside = b.constant(bins, torch.int64)
        return (b.picked(b.where(inside, place, outside), bins, wraps=False, is_checked=False),), b.constant(
            1, compute_dtype(a.dtype)
        )

    return scattered(low, zeros, a.shape, write, is_added=True)


@lowers(aten.take.default)
def take(low: Lowering, a: Tensor, index: Tensor) -> Tensor:
    check_loopable(a)
    count = product(a.shape)
    return low.pointwise(
        index.shape, a.dtype, lambda b, i: a.at(b, unflatten(b.picked(index.at(b, i), count), a.shape))
    )


@lowers(aten._trilinear.default)
def trilinear(
    low: Lowering,
    first: Tensor,
    second: Tensor,
    third: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """The sum over some dimensions of the product of three tensors."""
    check_loopable(first, second, third)
    if not first.dtype.is_floating_point:
        raise NotLowered("products of whole numbers are summed by ATen")
    rank = len(first.shape) + len(expand1)
    parts = [_lifted(t, e, rank) for t, e in ((first, expand1), (second, expand2), (third, expand3))]
    shape = tuple(next((t.shape[d] for t in parts if t.shape[d] != 1), 1) for d in range(rank))
    spread = [broadcast_to(t, shape) for t in parts]
    held = compute_dtype(first.dtype)

    def multiplied(b: Builder, i: Coordinates) -> Op:
        x, y, z = (t.at(b, i) for t in spread)
        return b.call("mul", b.call("mul", x, y), z)

    whole = low.pointwise(
        shape, held, multiplied, name=f"{low.node.name if low.node is not None else 'trilinear'}_each"
    )
    dims = tuple(sorted(d % rank for d in sumdim))
    if any(shape[d] == 0 for d in dims):
        raise NotLowered("a reduction over no elements is left to ATen")
    return reduce(low, "sum", whole, dims, False, first.dtype, whole.at)


def _lifted(a: Tensor, new: Sequence[int], rank: int) -> Tensor:
    kept = [d for d in range(rank) if d not in new]
    sizes = dict(zip(kept, a.shape, strict=True))
    return a.view(tuple(sizes.get(d, 1) for d in range(rank)), lambda i: tuple(i[d] for d in kept))
