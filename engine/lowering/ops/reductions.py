"""Reductions: sum, mean, variance, min, max, argmin, argmax, any, all."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import (
    ZERO,
    Size,
    contiguous_strides,
    flatten,
    product,
    static_product,
    unflatten,
)
from engine.ir.loop_ir.ops import LoopIROp, compute_dtype
from engine.ir.loop_ir.tensor_def import Coordinates
from engine.ir.node_values import results_of
from engine.ir.register_once import register_each
from engine.ir.static_sizes import static_size
from engine.lowering.context import LoweredTensor, LoweringContext, fake_result
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.ops.reduction_splits import (
    FLOATS,
    RowParts,
    dims_of_short_runs,
    in_memory_order,
    outer_split,
    parts_of_rows,
    split_count,
    split_count_of,
)
from engine.lowering.promotion import canonical_dim, stored_loader
from engine.lowering.registry import register_lowering
from engine.lowering.result_strides import symbolic_shape

aten = torch.ops.aten


prims = torch.ops.prims


ElementFn = Callable[[LoopBuilder, Coordinates], LoopIROp]
ReducedElementFn = Callable[[LoopBuilder, Coordinates, Coordinates], LoopIROp]
"""``(builder, index of the result, position in the reduced ranges) -> element``."""


def _full_index(a: LoweredTensor, dims: tuple[int, ...]) -> Callable[[Coordinates, Coordinates], Coordinates]:
    """Return a map from (result index, reduction index) to an index of the tensor."""
    kept = tuple(d for d in range(len(a.shape)) if d not in dims)

    def full_index(index: Coordinates, inner: Coordinates) -> Coordinates:
        coordinate_of_dim = {**dict(zip(kept, index, strict=True)), **dict(zip(dims, inner, strict=True))}
        return tuple(coordinate_of_dim[d] for d in range(len(a.shape)))

    return full_index


def _canonical_dims(a: LoweredTensor, dim: Any) -> tuple[int, ...]:
    dims = () if dim is None else results_of(dim)
    return tuple(sorted({canonical_dim(d, len(a.shape)) for d in dims} if a.shape else ())) or tuple(
        range(len(a.shape))
    )


def _reduced_shape(a: LoweredTensor, dims: tuple[int, ...], keepdim: bool) -> tuple[Size, ...]:
    if keepdim:
        return tuple(1 if d in dims else s for d, s in enumerate(a.shape))
    return tuple(s for d, s in enumerate(a.shape) if d not in dims)


def reduce(
    low: LoweringContext,
    kind: str,
    a: LoweredTensor,
    dims: tuple[int, ...],
    keepdim: bool,
    dtype: torch.dtype,
    value: ElementFn,
    *,
    name: str = "",
) -> LoweredTensor:
    """Reduce ``value``, loaded at indices of ``a``, over dimensions.

    The reduction is split in two steps if the outputs are few and the inputs are many.
    """
    dims = dims if low.is_cpu else in_memory_order(a, dims)
    shape = _reduced_shape(a, dims, False)
    ranges = tuple(a.shape[d] for d in dims)
    kept = tuple(d for d in range(len(a.shape)) if d not in dims)
    full_index, parts = _full_index(a, dims), split_count_of(low, a, dims)
    outer = outer_split(a, dims) if low.is_cpu and parts > 1 else 0
    row_parts = parts_of_rows(low, a, dims) if kind == "sum" and compute_dtype(dtype) in FLOATS else None

    def body(b: LoopBuilder, index: Coordinates, position: Coordinates) -> LoopIROp:
        return value(b, full_index(index, position))

    if row_parts is not None:
        result = _add_rows_to_parts(low, a.shape, len(dims), row_parts, dtype, body, name)
    elif outer:
        result = _reduce_in_two_steps(low, kind, shape, ranges[:outer], ranges[outer:], dtype, body, name)
    elif parts > 1:
        length, partial = _split_ranges(kind, ranges, parts, dtype, body)
        result = _reduce_in_two_steps(low, kind, shape, (parts,), (length,), dtype, partial, name)
    else:
        result = low.reduction(kind, shape, ranges, dtype, body, name=name)
    if not keepdim:
        return result
    return result.view(_reduced_shape(a, dims, True), lambda index: tuple(index[d] for d in kept))


def reduction_identity(b: LoopBuilder, kind: str, dtype: torch.dtype) -> LoopIROp:
    """Return the identity of a reduction as an op."""
    return b.constant(reduction_identity_value(kind, compute_dtype(dtype)), dtype)


def reduction_identity_value(kind: str, dtype: torch.dtype) -> Any:
    """Return the identity of a reduction as a number of the compute dtype."""
    if kind in ("sum", "prod"):
        return 0 if kind == "sum" else 1
    if dtype == torch.bool:
        return kind == "min"
    if dtype.is_floating_point:
        return -math.inf if kind == "max" else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if kind == "max" else limits.max


def _split_ranges(
    kind: str, ranges: tuple[Size, ...], parts: int, dtype: torch.dtype, body: ReducedElementFn
) -> tuple[int, ReducedElementFn]:
    """Return the length of each of ``parts`` parts, and ``body`` at (part, offset in it)."""
    count = static_product(ranges)
    assert count is not None
    length = -(-count // parts)

    def partial(b: LoopBuilder, index: Coordinates, inner: Coordinates) -> LoopIROp:
        flat = inner[0] * length + inner[1]
        if parts * length == count:
            return body(b, index, unflatten(flat, ranges))
        strides = contiguous_strides(ranges)
        position = tuple(
            flat.div(s) if k == 0 else flat.div(s).mod(n) for k, (s, n) in enumerate(zip(strides, ranges, strict=True))
        )
        identity = reduction_identity(b, kind, compute_dtype(dtype))
        return b.masked(b.index_lt(flat, count), lambda: body(b, index, position), identity)

    return length, partial


def _reduce_in_two_steps(
    low: LoweringContext,
    kind: str,
    shape: tuple[Size, ...],
    outer: tuple[Size, ...],
    inner: tuple[Size, ...],
    dtype: torch.dtype,
    body: ReducedElementFn,
    name: str,
) -> LoweredTensor:
    """Reduce ``body`` over the ``inner`` ranges, then the results over the ``outer`` ranges."""

    def partial(b: LoopBuilder, index: Coordinates, position: Coordinates) -> LoopIROp:
        return body(b, index[len(outer) :], (*index[: len(outer)], *position))

    label = name or low.node_name
    first = low.reduction(kind, (*outer, *shape), inner, compute_dtype(dtype), partial, name=f"{label}_parts")
    return low.reduction(kind, shape, outer, dtype, lambda b, i, r: first.load(b, (*r, *i)), name=name)


def _add_rows_to_parts(
    low: LoweringContext,
    shape: tuple[Size, ...],
    rank: int,
    parts: RowParts,
    dtype: torch.dtype,
    body: ReducedElementFn,
    name: str,
) -> LoweredTensor:
    """Sum down columns: add each row to the sums of its part, then add the parts."""
    rows, dim = parts.rows, parts.dim
    kept, outer = shape[rank:], (*rows[:dim], rows[dim] // parts.length)

    def write(b: LoopBuilder, i: Coordinates) -> tuple[Coordinates, LoopIROp]:
        row, column = i[: len(rows)], i[len(rows) :]
        position = unflatten(flatten(row, contiguous_strides(rows)), shape[:rank])
        return (*row[:dim], row[dim].div(parts.length), *column), body(b, column, position)

    label, partial = f"{name or low.node_name}_parts", (*outer, *kept)
    sums = low.scatter(partial, (*rows, *kept), compute_dtype(dtype), 0.0, write, is_added=True, name=label)
    return low.reduction("sum", kept, outer, dtype, lambda b, i, r: sums.load(b, (*r, *i)), name=name)


def check_reducible(a: LoweredTensor, dims: tuple[int, ...]) -> None:
    """Raise if a reduction over these dimensions has no elements.

    Raises:
        NotLowered: a dimension has size 0.
    """
    if any(a.shape[d] == 0 for d in dims):
        raise NotLowered(LoweringFallback.EMPTY_INPUT, "a reduction over no elements has no lowering")


def _sum_or_prod(
    low: LoweringContext, a: LoweredTensor, dim: Any = None, keepdim: bool = False, *, kind: str, **_: Any
) -> LoweredTensor:
    result = fake_result(low).dtype
    dims = _canonical_dims(a, dim)
    if any(a.shape[d] == 0 for d in dims):
        return low.full(symbolic_shape(fake_result(low)), result, 1 if kind == "prod" else 0)
    if result == torch.bool:
        return _any_or_all(low, a, dim, keepdim, kind="min" if kind == "prod" else "max")
    return reduce(low, kind, a, dims, keepdim, result, stored_loader(a, result, a.shape))


register_lowering(aten.sum.dim_IntList, aten.sum.default)(functools.partial(_sum_or_prod, kind="sum"))


register_lowering(aten.prod.dim_int, aten.prod.default)(functools.partial(_sum_or_prod, kind="prod"))


@register_lowering(aten.mean.dim, aten.mean.default)
def mean(
    low: LoweringContext, a: LoweredTensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> LoweredTensor:
    dims = _canonical_dims(a, dim)
    result = fake_result(low).dtype
    if any(a.shape[d] == 0 for d in dims):
        return low.full(symbolic_shape(fake_result(low)), result, math.nan)
    return _mean(low, a, dims, keepdim, result)


def _mean(
    low: LoweringContext, a: LoweredTensor, dims: tuple[int, ...], keepdim: bool, result: torch.dtype, name: str = ""
) -> LoweredTensor:
    math_dtype = compute_dtype(result)
    base = name or low.node_name
    total = reduce(low, "sum", a, dims, keepdim, math_dtype, a.loader(math_dtype), name=f"{base}_sum")
    count = product(a.shape[d] for d in dims)
    return low.pointwise(total.shape, result, lambda b, i: total.load(b, i) / b.size(count, math_dtype), name=name)


def _variance(
    low: LoweringContext,
    a: LoweredTensor,
    dims: tuple[int, ...],
    keepdim: bool,
    correction: float,
    result: torch.dtype,
    name: str,
) -> tuple[LoweredTensor, LoweredTensor]:
    """Return ``(variance, mean)`` by two passes: the mean, then squared distances from it."""
    math_dtype = compute_dtype(result)
    if any(a.shape[d] == 0 for d in dims):
        none = low.full(_reduced_shape(a, dims, keepdim), result, math.nan)
        return none, none
    kept = tuple(d for d in range(len(a.shape)) if d not in dims)
    count = product(a.shape[d] for d in dims)
    parts = split_count_of(low, a, dims, reads_again=True)
    dims = dims if low.is_cpu else in_memory_order(a, dims)
    short = () if low.is_cpu else dims_of_short_runs(a, dims)
    split = tuple(d for d in dims if d not in short)
    static_count, length = static_size(count), static_size(product(a.shape[d] for d in split))
    if short:
        columns = product(n for d, n in enumerate(a.shape) if d not in split)
        parts = split_count(columns, product(a.shape[d] for d in split), is_columns=True)
    if length is not None and (short or parts > 1) and length % parts == 0:
        total, average = _split_variance(low, a, short, split, keepdim, parts, math_dtype, name)
    else:
        average = _mean(low, a, dims, True, math_dtype, name=f"{name}_mean")

        def squared(b: LoopBuilder, i: Coordinates) -> LoopIROp:
            row = tuple(i[d] if d in kept else ZERO for d in range(len(a.shape)))
            distance = b.cast(a.load(b, i), math_dtype) - average.load(b, row)
            return distance * distance

        total = reduce(low, "sum", a, dims, keepdim, math_dtype, squared, name=f"{name}_squares")

    def divided(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        if static_count is not None:
            return total.load(b, i) / max(static_count - correction, 0.0)
        return total.load(b, i) / b.call("maximum", b.size(count, math_dtype) - correction, 0.0)

    variance = low.pointwise(total.shape, result, divided, name=f"{name}_var")
    mean_shape = _reduced_shape(a, dims, keepdim)
    mean = average if keepdim else average.view(mean_shape, lambda i: _insert_reduced_dims(i, kept, len(a.shape)))
    rounded = mean if mean.dtype == result else low.pointwise(mean_shape, result, mean.load)
    return variance, rounded


def _split_variance(
    low: LoweringContext,
    a: LoweredTensor,
    whole: tuple[int, ...],
    split: tuple[int, ...],
    keepdim: bool,
    parts: int,
    math_dtype: torch.dtype,
    name: str,
) -> tuple[LoweredTensor, LoweredTensor]:
    """Return ``(sum of squared distances from the mean, mean)``, combined from parts.

    The dimensions ``split`` are reduced in parts, and their results over the dimensions ``whole``. The input is read
    once. The squares of each part are around its own mean; the distance of that mean from the total
    mean is added (Chan, Golub and LeVeque, 1979).
    """
    dims = (*whole, *split)
    shape, beside, ranges = _reduced_shape(a, dims, False), [a.shape[d] for d in whole], [a.shape[d] for d in split]
    count, split_count = static_product((*beside, *ranges)), static_product(ranges)
    assert count is not None
    assert split_count is not None
    length, full_index = split_count // parts, _full_index(a, dims)

    def value(b: LoopBuilder, i: Coordinates, r: Coordinates) -> LoopIROp:
        row, column = i[1 : len(shape) + 1], i[len(shape) + 1 :]
        position = unflatten(i[0] * length + r[0], tuple(ranges))
        return b.cast(a.load(b, full_index(row, (*column, *position))), math_dtype)

    sums = low.reduction("sum", (parts, *shape, *beside), (length,), math_dtype, value, name=f"{name}_sums")

    def mean_of_part(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        return sums.load(b, i) / length

    def squared(b: LoopBuilder, i: Coordinates, r: Coordinates) -> LoopIROp:
        distance = value(b, i, r) - mean_of_part(b, i)
        return distance * distance

    squares = low.reduction("sum", (parts, *shape, *beside), (length,), math_dtype, squared, name=f"{name}_parts")
    sum_of_all = low.reduction(
        "sum", shape, (parts, *beside), math_dtype, lambda b, i, r: sums.load(b, (r[0], *i, *r[1:])), name=f"{name}_sum"
    )

    def mean(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        return sum_of_all.load(b, i) / count

    def around(b: LoopBuilder, i: Coordinates, r: Coordinates) -> LoopIROp:
        part = (r[0], *i, *r[1:])
        distance = mean_of_part(b, part) - mean(b, i)
        moved = distance * distance * length
        return squares.load(b, part) + moved

    total = low.reduction("sum", shape, (parts, *beside), math_dtype, around, name=f"{name}_squares")
    average = low.pointwise(shape, math_dtype, mean, name=f"{name}_mean")
    kept = tuple(d for d in range(len(a.shape)) if d not in dims)

    def wide(reduced: LoweredTensor) -> LoweredTensor:
        return reduced.view(_reduced_shape(a, dims, True), lambda index: tuple(index[d] for d in kept))

    return wide(total) if keepdim else total, wide(average)


def _insert_reduced_dims(index: Coordinates, kept: tuple[int, ...], rank: int) -> Coordinates:
    coordinate_of_dim = dict(zip(kept, index, strict=True))
    return tuple(coordinate_of_dim.get(d, ZERO) for d in range(rank))


@register_lowering(aten.var.correction)
def var(
    low: LoweringContext, a: LoweredTensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> LoweredTensor:
    spread: LoweredTensor = var_mean(low, a, dim, correction=correction, keepdim=keepdim)[0]
    return spread


@register_lowering(aten.var_mean.correction)
def var_mean(
    low: LoweringContext, a: LoweredTensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[LoweredTensor, LoweredTensor]:
    dims = _canonical_dims(a, dim)
    return _variance(low, a, dims, keepdim, 1.0 if correction is None else float(correction), a.dtype, low.node_name)


@register_lowering(aten.std.correction)
def std(
    low: LoweringContext, a: LoweredTensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> LoweredTensor:
    dims = _canonical_dims(a, dim)
    spread = _variance(
        low, a, dims, keepdim, 1.0 if correction is None else float(correction), compute_dtype(a.dtype), low.node_name
    )[0]
    return low.pointwise(spread.shape, a.dtype, lambda b, i: b.call("sqrt", spread.load(b, i)))


def min_or_max(
    low: LoweringContext, kind: str, a: LoweredTensor, dims: tuple[int, ...], keepdim: bool, name: str = ""
) -> LoweredTensor:
    """Reduce to the maximum or minimum; NaN if any element is NaN, as in eager."""
    base = name or low.node_name
    if a.dtype == torch.bool:
        top = reduce(low, kind, a, dims, keepdim, torch.int32, a.loader(torch.int32), name=f"{base}_int")
        return low.pointwise(top.shape, a.dtype, lambda b, i: top.load(b, i).differs(0))
    if not a.dtype.is_floating_point:
        return reduce(low, kind, a, dims, keepdim, a.dtype, a.load, name=base)
    top = reduce(low, kind, a, dims, keepdim, a.dtype, a.load, name=f"{base}_{kind}")

    def is_nan(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        return b.cast(a.load(b, i).is_nan(), torch.int32)

    nan = reduce(low, "max", a, dims, keepdim, torch.int32, is_nan, name=f"{base}_nan")

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        value = top.load(b, i)
        return b.where(nan.load(b, i).differs(0), math.nan, value)

    return low.pointwise(top.shape, a.dtype, body, name=name)


def arg_min_or_max(
    low: LoweringContext,
    kind: str,
    a: LoweredTensor,
    dims: tuple[int, ...],
    keepdim: bool,
    top: LoweredTensor,
    name: str = "",
) -> LoweredTensor:
    """Return the index of the first element equal to ``top``, flat over ``dims``.

    ``top`` has size 1 in ``dims``. A NaN counts as the extreme.
    """
    count = product(a.shape[d] for d in dims)
    kept = tuple(d for d in range(len(a.shape)) if d not in dims)
    strides = contiguous_strides(tuple(a.shape[d] for d in dims))

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        v = a.load(b, i)
        best = top.load(b, tuple(i[d] if d in kept else ZERO for d in range(len(a.shape))))
        hit = v.equals(best)
        if a.dtype.is_floating_point:
            hit = hit | v.is_nan() if kind else hit
            hit = b.where(best.is_nan(), v.is_nan(), hit)
        position = b.cast(b.index_value(flatten([i[d] for d in dims], strides)), torch.int64)
        return b.where(hit, position, b.size(count, torch.int64))

    return reduce(low, "min", a, dims, keepdim, torch.int64, body, name=name)


def _min_or_max_value(
    low: LoweringContext, a: LoweredTensor, dim: Any = None, keepdim: bool = False, *, kind: str
) -> LoweredTensor:
    dims = _canonical_dims(a, dim)
    check_reducible(a, dims)
    return min_or_max(low, kind, a, dims, keepdim)


register_lowering(aten.amax.default, aten.max.default)(functools.partial(_min_or_max_value, kind="max"))


register_lowering(aten.amin.default, aten.min.default)(functools.partial(_min_or_max_value, kind="min"))


def _extreme_and_index(
    low: LoweringContext, kind: str, a: LoweredTensor, dim: Any, keepdim: bool, index_name: str
) -> tuple[LoweredTensor, LoweredTensor]:
    """Return the maximum or minimum along dimensions and the index of its first occurrence."""
    dims = _canonical_dims(a, dim)
    check_reducible(a, dims)
    top = min_or_max(low, kind, a, dims, True, name=f"{low.node_name}_value")
    position = arg_min_or_max(low, kind, a, dims, True, top, name=index_name)
    if keepdim:
        return top, position
    return _drop_dims(top, dims), _drop_dims(position, dims)


def _drop_dims(a: LoweredTensor, dims: tuple[int, ...]) -> LoweredTensor:
    kept = tuple(d for d in range(len(a.shape)) if d not in dims)
    rank = len(a.shape)
    return a.view(tuple(a.shape[d] for d in kept), lambda i: _insert_reduced_dims(i, kept, rank))


@register_each(register_lowering, aten.max.dim, aten.min.dim)
def _min_max_with_index(
    operator: Any, low: LoweringContext, a: LoweredTensor, dim: int, keepdim: bool = False
) -> tuple[LoweredTensor, LoweredTensor]:
    kind = "max" if operator is aten.max.dim else "min"
    return _extreme_and_index(low, kind, a, dim, keepdim, f"{low.node_name}_index")


@register_each(register_lowering, aten.argmax.default, aten.argmin.default)
def _arg_min_max(
    operator: Any, low: LoweringContext, a: LoweredTensor, dim: int | None = None, keepdim: bool = False
) -> LoweredTensor:
    kind = "max" if operator is aten.argmax.default else "min"
    return _extreme_and_index(low, kind, a, dim, keepdim, "")[1]


def _any_or_all(
    low: LoweringContext, a: LoweredTensor, dim: Any = None, keepdim: bool = False, *, kind: str
) -> LoweredTensor:
    dims = _canonical_dims(a, dim)
    result = fake_result(low).dtype
    if any(a.shape[d] == 0 for d in dims):
        return low.full(symbolic_shape(fake_result(low)), result, kind == "min")

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        v = a.load(b, i)
        return b.cast(v if v.dtype == torch.bool else v.differs(0), torch.int32)

    reduced = reduce(low, kind, a, dims, keepdim, torch.int32, body, name=f"{low.node_name}_int")
    return low.pointwise(reduced.shape, result, lambda b, i: b.cast(reduced.load(b, i).differs(0), result))


register_lowering(aten.any.default, aten.any.dim, aten.any.dims, aten._is_any_true.default)(
    functools.partial(_any_or_all, kind="max")
)


register_lowering(aten.all.default, aten.all.dim, aten.all.dims, aten._is_all_true.default)(
    functools.partial(_any_or_all, kind="min")
)
