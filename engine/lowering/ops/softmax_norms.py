"""Lowerings of softmax and normalization operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import ZERO, Size, as_size, exact_quotient, product
from engine.ir.loop_ir.ops import LoopIROp, compute_dtype
from engine.ir.loop_ir.tensor_def import Body, Coordinates
from engine.lowering.context import LoweredTensor, LoweringContext, fake_result
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.ops.reductions import _variance, aten, reduce
from engine.lowering.ops.views import at_least_1d, reshape
from engine.lowering.promotion import canonical_dim
from engine.lowering.registry import register_lowering


@register_lowering(aten._softmax.default, aten.softmax.int, aten._safe_softmax.default)
def softmax(low: LoweringContext, a: LoweredTensor, dim: int, *_: Any, **__: Any) -> LoweredTensor:
    return _over_rows(low, a, dim, _softmax_of_rows)


@register_lowering(aten._log_softmax.default, aten.log_softmax.int)
def log_softmax(low: LoweringContext, a: LoweredTensor, dim: int, *_: Any, **__: Any) -> LoweredTensor:
    return _over_rows(low, a, dim, _log_softmax_of_rows)


RowMap = Callable[[Coordinates], Coordinates]
"""Map from an index to that of its row in a tensor reduced along the row."""


def _over_rows(low: LoweringContext, a: LoweredTensor, dim: int, define: Callable[..., LoweredTensor]) -> LoweredTensor:
    """Call ``define`` with the maximum of each row along ``dim``.

    It also gets the map of an index to its row. The maximum need not propagate NaN, since the exponentials do.
    """
    if not a.shape:
        return reshape(_over_rows(low, at_least_1d(a), 0, define), ())
    dim = canonical_dim(dim, len(a.shape))
    math_dtype = compute_dtype(fake_result(low).dtype)
    top = reduce(low, "max", a, (dim,), True, math_dtype, a.loader(math_dtype), name=f"{low.node_name}_max")
    return define(low, a, dim, top, lambda i: (*i[:dim], ZERO, *i[dim + 1 :]))


def _softmax_of_rows(
    low: LoweringContext, a: LoweredTensor, dim: int, top: LoweredTensor, row: RowMap
) -> LoweredTensor:
    is_safe = low.current_node is not None and low.current_node.target is aten._safe_softmax.default
    math_dtype = top.dtype

    def exponential(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        return b.call("exp", b.cast(a.load(b, i), math_dtype) - top.load(b, row(i)))

    exps = low.pointwise(a.shape, math_dtype, exponential, name=f"{low.node_name}_exp")
    total = reduce(low, "sum", exps, (dim,), True, math_dtype, exps.load, name=f"{low.node_name}_sum")

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        value = exps.load(b, i) / total.load(b, row(i))
        if not is_safe:
            return value
        empty = top.load(b, row(i)).equals(-math.inf)
        return b.where(empty, 0.0, value)

    return low.pointwise(a.shape, fake_result(low).dtype, body)


def _log_softmax_of_rows(
    low: LoweringContext, a: LoweredTensor, dim: int, top: LoweredTensor, row: RowMap
) -> LoweredTensor:
    math_dtype, name = top.dtype, low.node_name

    def shift(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        return b.cast(a.load(b, i), math_dtype) - top.load(b, row(i))

    shifted = low.pointwise(a.shape, math_dtype, shift, name=f"{name}_shifted")

    def exponential(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        return b.call("exp", shifted.load(b, i))

    total = reduce(low, "sum", shifted, (dim,), True, math_dtype, exponential, name=f"{name}_sum")
    result = fake_result(low).dtype
    return low.pointwise(a.shape, result, lambda b, i: shifted.load(b, i) - b.call("log", total.load(b, row(i))))


@register_lowering(aten.native_layer_norm.default)
def native_layer_norm(
    low: LoweringContext,
    a: LoweredTensor,
    normalized: Sequence[Any],
    weight: LoweredTensor | None,
    bias: LoweredTensor | None,
    eps: float,
) -> tuple[LoweredTensor, ...]:
    dims = tuple(range(len(a.shape) - len(normalized), len(a.shape)))
    first = dims[0] if dims else len(a.shape)
    moments = _variance(low, a, dims, True, 0.0, compute_dtype(a.dtype), low.node_name)

    def row(i: Coordinates) -> Coordinates:
        return (*i[:first], *(ZERO for _ in dims))

    return _normalized(low, a, moments, row, (weight, bias), lambda i: i[first:], eps)


def _normalized(
    low: LoweringContext,
    a: LoweredTensor,
    moments: tuple[LoweredTensor, LoweredTensor],
    row: RowMap,
    affine: tuple[LoweredTensor | None, LoweredTensor | None],
    element: RowMap,
    eps: float,
) -> tuple[LoweredTensor, ...]:
    """Return ``a`` normalized by the moments of its rows, and their mean and scale.

    ``moments``: variance and mean of each row. ``affine``: weight and bias, read at ``element`` of an index.
    """
    (variance, average), (weight, bias), math_dtype = moments, affine, compute_dtype(a.dtype)
    scale = _inverse_root(low, variance.shape, math_dtype, lambda b, i: variance.load(b, i) + eps)

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        value = (b.cast(a.load(b, i), math_dtype) - average.load(b, row(i))) * scale.load(b, row(i))
        if weight is not None:
            value = value * b.cast(weight.load(b, element(i)), math_dtype)
        return value if bias is None else value + b.cast(bias.load(b, element(i)), math_dtype)

    return _with_statistics(low, a, body, average, scale)


def _inverse_root(low: LoweringContext, shape: tuple[Size, ...], dtype: torch.dtype, value: Body) -> LoweredTensor:
    return low.pointwise(shape, dtype, lambda b, i: b.call("rsqrt", value(b, i)), name=f"{low.node_name}_rstd")


def _with_statistics(
    low: LoweringContext, a: LoweredTensor, body: Body, *statistics: LoweredTensor
) -> tuple[LoweredTensor, ...]:
    """Return the normalized tensor in eager's layout, and its statistics in eager's dtype."""
    first = fake_result(low)[1]
    stored = [t if t.dtype == first.dtype else low.pointwise(t.shape, first.dtype, t.load) for t in statistics]
    return low.pointwise(a.shape, a.dtype, body), *stored


@register_lowering(aten.native_group_norm.default)
def native_group_norm(
    low: LoweringContext,
    a: LoweredTensor,
    weight: LoweredTensor | None,
    bias: LoweredTensor | None,
    n: Any,
    c: Any,
    hw: Any,
    groups: int,
    eps: float,
) -> tuple[LoweredTensor, ...]:
    """Normalize each of ``groups`` groups of channels of each sample."""
    channels = exact_quotient(as_size(c), groups)
    if channels is None or 0 in a.shape:
        raise NotLowered(
            LoweringFallback.OPERATOR_MODE,
            "group norm has no lowering for an empty input or a number of channels that the groups do not divide",
        )
    reduced = (channels * as_size(hw),) if low.is_cpu else (channels, as_size(hw))
    grouped = reshape(a, (as_size(n), groups, *reduced))
    moments = _variance(low, grouped, (2, 3)[: len(reduced)], False, 0.0, compute_dtype(a.dtype), low.node_name)
    return _normalized(low, a, moments, lambda i: (i[0], i[1].div(channels)), (weight, bias), lambda i: (i[1],), eps)


@register_lowering(aten._fused_rms_norm.default)
def rms_norm(
    low: LoweringContext, a: LoweredTensor, normalized: Sequence[Any], weight: LoweredTensor | None, eps: float | None
) -> tuple[LoweredTensor, ...]:
    dims = tuple(range(len(a.shape) - len(normalized), len(a.shape)))
    math_dtype = compute_dtype(a.dtype)
    small = torch.finfo(a.dtype).eps if eps is None else eps

    def squared(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        v = b.cast(a.load(b, i), math_dtype)
        return v * v

    total = reduce(low, "sum", a, dims, True, math_dtype, squared, name=f"{low.node_name}_squares")
    count = product(a.shape[d] for d in dims)
    scale = _inverse_root(
        low, total.shape, math_dtype, lambda b, i: total.load(b, i) / b.size(count, math_dtype) + small
    )
    first = dims[0]

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        value = b.cast(a.load(b, i), math_dtype) * scale.load(b, (*i[:first], *(ZERO for _ in dims)))
        return value if weight is None else value * b.cast(weight.load(b, i[first:]), math_dtype)

    return _with_statistics(low, a, body, scale)
