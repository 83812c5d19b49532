"""``scatter_reduce`` and related operators as gather-style loops.

Targets lack the atomic operations that a scatter would need. Instead, every element of the result tests all
candidates, so their order does not matter. The cost is the number of candidates times that of results, at most
``MAX_COMPARISONS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import (
    IndexExpr,
    Size,
    contiguous_strides,
    flatten,
    product,
    sizes_equal,
    static_product,
    unflatten,
)
from engine.ir.loop_ir.ops import LoopIROp, compute_dtype, conjunction
from engine.ir.loop_ir.tensor_def import Coordinates
from engine.lowering.context import LoweredTensor, LoweringContext, fake_result, lowered_tensors
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.ops.reductions import check_reducible, min_or_max, reduce, reduction_identity_value
from engine.lowering.ops.scatter import ATOMIC_ADD_DTYPES, check_rows, scatter_along_dim, scatter_rows
from engine.lowering.ops.views import at_least_1d, broadcast_to, reshape
from engine.lowering.promotion import broadcast_loader, canonical_dim
from engine.lowering.registry import register_lowering
from engine.lowering.result_strides import symbolic_shape

aten = torch.ops.aten


MAX_COMPARISONS = 1 << 24
"""Most tests of a candidate against a result element that one operator may cost."""


MAX_MASK_ELEMENTS = 16_384
"""Longest mask whose running count one kernel computes."""


REDUCTION_KINDS = {
    "prod": "prod",
    "multiply": "prod",
    "amax": "max",
    "amin": "min",
    "mean": "sum",
    "sum": "sum",
    "add": "sum",
}


MatchFn = Callable[[LoopBuilder, Coordinates, IndexExpr], tuple[LoopIROp, Callable[[], LoopIROp]]]
"""``(builder, index, candidate) -> (test whether it belongs there, its value)``."""


def _gather_reduce(
    low: LoweringContext, a: LoweredTensor, count: Size, hits: MatchFn, reduction: str, *, include_self: bool
) -> LoweredTensor:
    """Reduce the candidates of each element of ``a``, with or without the element itself."""
    total = static_product((*a.shape, count))
    if total is None:
        raise NotLowered(LoweringFallback.SYMBOLIC_SIZE, "a scatter reduction of symbolic size has no lowering")
    if total > MAX_COMPARISONS:
        text = f"a scatter reduction with more than {MAX_COMPARISONS:,} comparisons has no lowering"
        raise NotLowered(LoweringFallback.TOO_LARGE, text)
    if a.dtype is torch.bool:
        raise NotLowered(LoweringFallback.NEEDS_INTEGERS, "a scatter reduction of bool has no lowering")
    kind, math_dtype = REDUCTION_KINDS[reduction], compute_dtype(a.dtype)
    nothing = reduction_identity_value(kind, math_dtype)
    rank, name = len(a.shape), low.node_name

    def candidate(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        hit, value = hits(b, i[:rank], i[rank])
        return b.where(hit, b.cast(value(), math_dtype), nothing)

    def counted(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        return b.cast(hits(b, i[:rank], i[rank])[0], torch.int32)

    positions = low.pointwise((*a.shape, count), math_dtype, candidate, name=f"{name}_candidates")
    if reduction in ("amax", "amin") and math_dtype.is_floating_point:
        best = min_or_max(low, kind, positions, (rank,), False, name=f"{name}_best")
    else:
        best = reduce(low, kind, positions, (rank,), False, math_dtype, positions.load, name=f"{name}_best")
    matches = low.pointwise((*a.shape, count), torch.int32, counted, name=f"{name}_found")
    number = reduce(low, "sum", matches, (rank,), False, torch.int32, matches.load, name=f"{name}_count")

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        own, new, many = b.cast(a.load(b, i), math_dtype), best.load(b, i), number.load(b, i)
        joined = _combine(b, reduction, own, new) if include_self else new
        if reduction == "mean":
            share = b.cast(many + 1 if include_self else many, math_dtype)
            joined = _mean_of(b, joined, share)
        return b.where(many.equals(0), own, joined)

    return low.pointwise(a.shape, a.dtype, body)


def _combine(b: LoopBuilder, reduction: str, own: LoopIROp, new: LoopIROp) -> LoopIROp:
    return b.call(
        {"prod": "mul", "max": "maximum", "min": "minimum", "sum": "add"}[REDUCTION_KINDS[reduction]], own, new
    )


def _mean_of(b: LoopBuilder, total: LoopIROp, count: LoopIROp) -> LoopIROp:
    """Divide a total by a count; round integers down."""
    if total.dtype.is_floating_point:
        return total / count
    quotient, rest = b.call("truncdiv", total, count), b.call("rem", total, count)
    is_below = rest < 0
    return b.where(is_below, quotient - 1, quotient)


def _index_matches(b: LoopBuilder, index: LoopIROp, position: IndexExpr, size: Size) -> LoopIROp:
    """Test if an index, counted from the end if negative, equals a position."""
    wide = b.cast(index, torch.int64)
    is_negative = wide < 0
    wrapped = b.where(is_negative, wide + b.size(size, torch.int64), wide)
    return wrapped.equals(b.cast(b.index_value(position), torch.int64))


@register_lowering(aten.index_reduce.default)
def index_reduce(
    low: LoweringContext,
    a: LoweredTensor,
    dim: int,
    index: LoweredTensor,
    source: LoweredTensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> LoweredTensor:
    row, rows, positions = map(at_least_1d, (a, source, index))
    dim = canonical_dim(dim, len(a.shape))
    check_rows(row, dim, positions, rows)
    if positions.shape[0] == 0:
        raise NotLowered(LoweringFallback.EMPTY_INDEX, "a write with an empty index has no lowering")

    def hits(b: LoopBuilder, i: Coordinates, k: IndexExpr) -> tuple[LoopIROp, Callable[[], LoopIROp]]:
        hit = _index_matches(b, positions.load(b, (k,)), i[dim], row.shape[dim])
        return hit, lambda: rows.load(b, (*i[:dim], k, *i[dim + 1 :]))

    return reshape(_gather_reduce(low, row, positions.shape[0], hits, reduce, include_self=include_self), a.shape)


@register_lowering(aten.index_add.default)
def index_add(
    low: LoweringContext, a: LoweredTensor, dim: int, indices: LoweredTensor, source: LoweredTensor, *, alpha: Any = 1
) -> LoweredTensor:
    """Lower to atomic adds; for dtypes without atomic adds, to a gather-style loop."""
    if alpha == 1 and a.dtype in (torch.int8, torch.int16, torch.uint8):
        return index_reduce(low, a, dim, indices, source, "sum")  # type: ignore[no-any-return]
    return scatter_rows(low, a, dim, indices, source, alpha, is_added=True)


def scatter_reduce_along(
    low: LoweringContext,
    a: LoweredTensor,
    dim: int,
    index: LoweredTensor,
    source: Any,
    reduction: str,
    *,
    include_self: bool = True,
) -> LoweredTensor:
    """Lower ``scatter_reduce`` along a dimension; each candidate has an index."""
    if 0 in index.shape:
        raise NotLowered(LoweringFallback.EMPTY_INDEX, "a write with an empty index has no lowering")
    if not a.shape or not index.shape:
        source_row = at_least_1d(source) if lowered_tensors(source) else source
        row = scatter_reduce_along(
            low, at_least_1d(a), 0, at_least_1d(index), source_row, reduction, include_self=include_self
        )
        return reshape(row, a.shape)
    dim = canonical_dim(dim, len(a.shape))
    others = [d for d in range(len(a.shape)) if d != dim and not sizes_equal(a.shape[d], index.shape[d])]
    value = source.load if lowered_tensors(source) else broadcast_loader(source, a.dtype, index.shape)

    def hits(b: LoopBuilder, i: Coordinates, k: IndexExpr) -> tuple[LoopIROp, Callable[[], LoopIROp]]:
        position = (*i[:dim], k, *i[dim + 1 :])
        inside = conjunction(b.index_lt(i[d], index.shape[d]) for d in others)
        if inside is None:
            return _index_matches(b, index.load(b, position), i[dim], a.shape[dim]), lambda: value(b, position)
        named = b.masked(
            inside, lambda: b.cast(index.load(b, position), torch.int64), b.constant(-(1 << 40), torch.int64)
        )
        nothing = b.constant(0, a.dtype)
        return (
            _index_matches(b, named, i[dim], a.shape[dim]),
            lambda: b.masked(inside, lambda: b.cast(value(b, position), a.dtype), nothing),
        )

    return _gather_reduce(low, a, index.shape[dim], hits, reduction, include_self=include_self)


@register_lowering(aten.scatter_add.default)
def scatter_add(
    low: LoweringContext, a: LoweredTensor, dim: int, indices: LoweredTensor, source: LoweredTensor
) -> LoweredTensor:
    return scatter_reduce(low, a, dim, indices, source, "sum")  # type: ignore[no-any-return]


@register_lowering(aten.scatter_reduce.two)
def scatter_reduce(
    low: LoweringContext,
    a: LoweredTensor,
    dim: int,
    indices: LoweredTensor,
    source: LoweredTensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> LoweredTensor:
    """Lower sums and means to atomic adds, other reductions to a gather-style loop."""
    math_dtype = compute_dtype(a.dtype)
    if (
        reduce not in ("sum", "mean")
        or math_dtype not in ATOMIC_ADD_DTYPES
        or (reduce == "mean" and not math_dtype.is_floating_point)
    ):
        return scatter_reduce_along(low, a, dim, indices, source, reduce, include_self=include_self)
    start = a
    if not include_self:
        start = scatter_along_dim(low, a, dim, indices, lambda b, i: b.constant(0, a.dtype), is_added=False)
    total = scatter_along_dim(low, start, dim, indices, source.loader(math_dtype), is_added=True)
    if reduce == "sum":
        return total
    none = low.full(a.shape, math_dtype, 1 if include_self else 0, name="count_start")
    count = scatter_along_dim(low, none, dim, indices, lambda b, i: b.constant(1, math_dtype), is_added=True)

    def mean(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        one = b.constant(1, math_dtype)
        return total.load(b, i) / b.call("maximum", count.load(b, i), one)

    return low.pointwise(a.shape, a.dtype, mean)


@register_lowering(aten.scatter.reduce, aten.scatter.value_reduce)
def scatter_with_reduction(
    low: LoweringContext, a: LoweredTensor, dim: int, index: LoweredTensor, source: Any, *, reduce: str
) -> LoweredTensor:
    return scatter_reduce_along(low, a, dim, index, source, reduce)


@register_lowering(aten.masked_scatter.default)
def masked_scatter(low: LoweringContext, a: LoweredTensor, mask: LoweredTensor, source: LoweredTensor) -> LoweredTensor:
    """Copy the source's elements in order to where the mask is true.

    The running count of the mask is the index into the source.
    """
    shape = symbolic_shape(fake_result(low))
    count = static_product(shape)
    if count is None or count > MAX_MASK_ELEMENTS:
        raise NotLowered(LoweringFallback.LONG_SEQUENCE, "a long mask, or one of symbolic size, has no lowering")
    row = reshape(broadcast_to(mask, shape), (count,))
    name = low.node_name
    flags = low.pointwise((count,), torch.int32, row.loader(torch.int32), name=f"{name}_flags")
    running = low.scan("sum", (count,), 0, torch.int32, flags.load) if count > 1 else flags
    source_size, kept = product(source.shape), broadcast_to(a, shape)
    pool = reshape(source, (source_size,))

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        flat = flatten(i, contiguous_strides(shape))
        is_set = row.load(b, (flat,))
        position = running.load(b, (flat,)) - 1
        chosen = b.masked(
            is_set,
            lambda: pool.load(b, (b.indirect_index(position, source_size, wraps=False),)),
            b.constant(0, a.dtype),
        )
        return b.where(is_set, chosen, kept.load(b, i))

    return low.pointwise(shape, a.dtype, body)


@register_lowering(aten.diagonal_scatter.default)
def diagonal_scatter(
    low: LoweringContext, a: LoweredTensor, source: LoweredTensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> LoweredTensor:
    first, second = dim1 % len(a.shape), dim2 % len(a.shape)
    value = broadcast_loader(source, a.dtype, source.shape)

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        here = b.index_value(i[first] + offset).equals(b.index_value(i[second]))
        rest = tuple(p for d, p in enumerate(i) if d not in (first, second))
        along = i[second] if offset < 0 else i[first]
        return b.masked(here, lambda: value(b, (*rest, along)), a.load(b, i))

    return low.pointwise(a.shape, a.dtype, body)


@register_lowering(aten.take.default)
def take(low: LoweringContext, a: LoweredTensor, index: LoweredTensor) -> LoweredTensor:
    count = product(a.shape)
    return low.pointwise(
        index.shape, a.dtype, lambda b, i: a.load(b, unflatten(b.indirect_index(index.load(b, i), count), a.shape))
    )


@register_lowering(aten._trilinear.default)
def trilinear(
    low: LoweringContext,
    first: LoweredTensor,
    second: LoweredTensor,
    third: LoweredTensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> LoweredTensor:
    """Sum the product of three tensors over some dimensions."""
    if not first.dtype.is_floating_point:
        raise NotLowered(LoweringFallback.INTEGER_OPERANDS, "a trilinear product of integers has no lowering")
    rank = len(first.shape) + len(expand1)
    parts = [_expand_dims(t, e, rank) for t, e in ((first, expand1), (second, expand2), (third, expand3))]
    shape = tuple(next((t.shape[d] for t in parts if t.shape[d] != 1), 1) for d in range(rank))
    spread = [broadcast_to(t, shape) for t in parts]
    math_dtype = compute_dtype(first.dtype)

    def multiplied(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        x, y, z = (t.load(b, i) for t in spread)
        return x * y * z

    whole = low.pointwise(shape, math_dtype, multiplied, name=f"{low.node_name}_each")
    dims = tuple(sorted(d % rank for d in sumdim))
    check_reducible(whole, dims)
    return reduce(low, "sum", whole, dims, False, first.dtype, whole.load)


def _expand_dims(a: LoweredTensor, new: Sequence[int], rank: int) -> LoweredTensor:
    kept = [d for d in range(rank) if d not in new]
    sizes = dict(zip(kept, a.shape, strict=True))
    return a.view(tuple(sizes.get(d, 1) for d in range(rank)), lambda i: tuple(i[d] for d in kept))
