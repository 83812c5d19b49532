"""Indirect reads and tensors made from nothing: embedding, gather, index, arange, full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from engine.ir.index import IndexExpr, Size, as_size
from engine.ir.loops import Coordinates, LoopBuilder, LoopIROp
from engine.lowering.ops.reductions import reduce
from engine.lowering.ops.views import at_least_1d, broadcast_to
from engine.lowering.table import (
    LoweredTensor,
    LoweringContext,
    NotLowered,
    broadcast_shape,
    canonical_dim,
    check_supported_dtype,
    fake_result,
    is_float_expr,
    register_lowering,
    symbolic_shape,
)

aten = torch.ops.aten
prims = torch.ops.prims


@register_lowering(aten.embedding.default)
def embedding(low: LoweringContext, weight: LoweredTensor, indices: LoweredTensor, *_: Any) -> LoweredTensor:
    check_supported_dtype(weight)
    rows = weight.shape[0]
    shape = symbolic_shape(fake_result(low))
    return low.pointwise(
        shape,
        weight.dtype,
        lambda b, i: weight.load(b, (b.indirect_index(indices.load(b, i[:-1]), rows, wraps=False), i[-1])),
    )


@register_lowering(aten.index_select.default)
def index_select(low: LoweringContext, a: LoweredTensor, dim: int, indices: LoweredTensor) -> LoweredTensor:
    check_supported_dtype(a)
    row, places, dim = at_least_1d(a), at_least_1d(indices), canonical_dim(dim, len(a.shape))

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        here = places.load(b, (i[dim] if i else IndexExpr(),))
        return row.load(b, (*i[:dim], b.indirect_index(here, row.shape[dim], wraps=False), *i[dim + 1 :]))

    return low.pointwise(symbolic_shape(fake_result(low)), a.dtype, body)


@register_lowering(aten.gather.default)
def gather(low: LoweringContext, a: LoweredTensor, dim: int, indices: LoweredTensor, **_: Any) -> LoweredTensor:
    check_supported_dtype(a)
    row, dim = at_least_1d(a), canonical_dim(dim, len(a.shape))
    return low.pointwise(
        indices.shape,
        a.dtype,
        lambda b, i: row.load(
            b, (*i[:dim], b.indirect_index(indices.load(b, i), row.shape[dim], wraps=False), *i[dim + 1 :])
        ),
    )


@register_lowering(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(low: LoweringContext, a: LoweredTensor, indices: Sequence[LoweredTensor | None]) -> LoweredTensor:
    check_supported_dtype(a)
    given = [t for t in indices if t is not None]
    if any(t.dtype in (torch.bool, torch.uint8) for t in given):
        raise NotLowered("a boolean index gives a result whose size depends on the data")
    picked_shape = broadcast_shape(given)
    spread = {d: broadcast_to(t, picked_shape) for d, t in enumerate(indices) if t is not None}
    places = sorted(spread)
    is_together = places == list(range(places[0], places[0] + len(places)))
    start = places[0] if is_together else 0
    is_checked = low.current_node is None or low.current_node.target is not aten._unsafe_index.Tensor
    shape = symbolic_shape(fake_result(low))
    others = [d for d in range(len(a.shape)) if d not in spread]

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        where = i[start : start + len(picked_shape)]
        rest = dict(zip(others, (*i[:start], *i[start + len(picked_shape) :]), strict=True))
        return a.load(
            b,
            tuple(
                b.indirect_index(spread[d].load(b, where), a.shape[d], is_checked=is_checked)
                if d in spread
                else rest[d]
                for d in range(len(a.shape))
            ),
        )

    return low.pointwise(shape, a.dtype, body)


@register_lowering(aten.full.default, aten.full_like.default, aten.new_full.default)
def full(low: LoweringContext, *args: Any, **_: Any) -> LoweredTensor:
    value = fake_result(low)
    fill = args[-1]
    check_supported_dtype(value)
    if isinstance(fill, LoweredTensor):
        raise NotLowered("a fill value held in a tensor is filled in by ATen")
    return _full(low, value, fill)


def _full(low: LoweringContext, value: torch.Tensor, fill: Any) -> LoweredTensor:
    dtype = value.dtype
    if isinstance(fill, (bool, int, float)):
        return low.pointwise(symbolic_shape(value), dtype, lambda b, i: b.constant(fill, dtype))
    if isinstance(fill, complex):
        raise NotLowered("complex numbers are computed by ATen")
    if is_float_expr(fill) and not dtype.is_floating_point:
        raise NotLowered("whole numbers filled in from a fraction are left to ATen")
    return low.pointwise(symbolic_shape(value), dtype, lambda b, i: b.constant(fill, dtype))


@register_lowering(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
def zeros(low: LoweringContext, *_: Any, **__: Any) -> LoweredTensor:
    check_supported_dtype(fake_result(low))
    return _full(low, fake_result(low), 0)


@register_lowering(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(low: LoweringContext, *_: Any, **__: Any) -> LoweredTensor:
    check_supported_dtype(fake_result(low))
    return _full(low, fake_result(low), 1)


@register_lowering(aten.fill.Scalar)
def fill(low: LoweringContext, a: LoweredTensor, value: Any) -> LoweredTensor:
    check_supported_dtype(a)
    return _full(low, fake_result(low), value)


@register_lowering(aten.scalar_tensor.default)
def scalar_tensor(low: LoweringContext, value: Any, **_: Any) -> LoweredTensor:
    check_supported_dtype(fake_result(low))
    return _full(low, fake_result(low), value)


def _arange(low: LoweringContext, start: Any, step: Any) -> LoweredTensor:
    value = fake_result(low)
    check_supported_dtype(value)
    dtype = value.dtype
    if is_float_expr(start) or is_float_expr(step):
        raise NotLowered("a sequence with fractions that follow from sizes is made by ATen")

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        if isinstance(start, float) or isinstance(step, float):
            held = torch.float64 if dtype == torch.float64 else torch.float32
            place = b.cast(b.index_value(i[0]), held)
            return b.cast(
                b.call("add", b.call("mul", place, b.constant(float(step), held)), b.constant(float(start), held)),
                dtype,
            )
        place = b.index_value(i[0])
        if dtype == torch.int64 or not (isinstance(start, int) and isinstance(step, int)):
            place = b.cast(place, torch.int64)
        if step != 1:
            place = b.call("mul", place, b.size(as_size(step), place.dtype))
        if start != 0:
            place = b.call("add", place, b.size(as_size(start), place.dtype))
        return b.cast(place, dtype)

    return low.pointwise(symbolic_shape(value), dtype, body)


@register_lowering(aten.arange.default)
def arange(low: LoweringContext, end: Any, **_: Any) -> LoweredTensor:
    return _arange(low, 0, 1)


@register_lowering(aten.arange.start)
def arange_start(low: LoweringContext, start: Any, end: Any, **_: Any) -> LoweredTensor:
    return _arange(low, start, 1)


@register_lowering(aten.arange.start_step)
def arange_step(low: LoweringContext, start: Any, end: Any, step: Any = 1, **_: Any) -> LoweredTensor:
    return _arange(low, start, step)


@register_lowering(prims.iota.default)
def iota(low: LoweringContext, length: Any, *, start: Any, step: Any, **_: Any) -> LoweredTensor:
    return _arange(low, start, step)


@register_lowering(aten.nll_loss_forward.default)
def nll_loss_forward(
    low: LoweringContext,
    a: LoweredTensor,
    target: LoweredTensor,
    weight: LoweredTensor | None,
    reduction: int,
    ignore_index: int,
) -> tuple[LoweredTensor, LoweredTensor]:
    """Negative log-likelihood of class indices; the second result is the total weight."""
    check_supported_dtype(a)
    held = torch.float32 if a.dtype in (torch.float16, torch.bfloat16) else a.dtype
    classes = a.shape[-1]
    is_single = len(a.shape) == 1
    count: tuple[Size, ...] = () if is_single else (a.shape[0],)

    def kept(b: LoopBuilder, i: Coordinates) -> tuple[LoopIROp, LoopIROp, IndexExpr]:
        wanted = target.load(b, i if target.shape else ())
        is_kept = b.call("ne", wanted, b.constant(ignore_index, wanted.dtype), dtype=torch.bool)
        safe = b.where(is_kept, wanted, b.constant(0, wanted.dtype))
        place = b.indirect_index(safe, classes, wraps=False)
        factor = b.constant(1.0, held) if weight is None else b.cast(weight.load(b, (place,)), held)
        return is_kept, factor, place

    def loss(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        is_kept, factor, place = kept(b, i)
        likelihood = b.cast(a.load(b, (place,) if is_single else (*i, place)), held)
        value = b.call("neg", likelihood if weight is None else b.call("mul", likelihood, factor))
        return b.where(is_kept, value, b.constant(0.0, held))

    def weighed(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        is_kept, factor, _ = kept(b, i)
        return b.where(is_kept, factor, b.constant(0.0, held))

    name = low.current_node.name if low.current_node is not None else "nll"
    losses = low.pointwise(count, held, loss, name=f"{name}_each")
    if reduction == 0 and not is_single:
        return low.pointwise(count, a.dtype, losses.load), low.pointwise(
            (), a.dtype, lambda b, i: b.constant(0.0, held)
        )
    if is_single:
        own_weight = low.pointwise((), a.dtype, (lambda b, i: b.constant(0.0, held)) if reduction == 0 else weighed)
        if reduction != 1:
            return low.pointwise((), a.dtype, loss), own_weight
        return low.pointwise((), a.dtype, lambda b, i: b.call("div", loss(b, i), weighed(b, i))), own_weight
    # One element of each row is picked where the rows are reduced, not by the one program that adds them up.
    low.no_fuse.add(losses.definition)
    weights = low.pointwise(count, held, weighed, name=f"{name}_weights")
    total = reduce(low, "sum", losses, (0,), False, held, losses.load, name=f"{name}_sum")
    weight_sum = reduce(low, "sum", weights, (0,), False, held, weights.load, name=f"{name}_weight")
    shown = low.pointwise((), a.dtype, weight_sum.load)
    if reduction == 2:
        return low.pointwise((), a.dtype, total.load), shown
    return low.pointwise((), a.dtype, lambda b, i: b.call("div", total.load(b, i), weight_sum.load(b, i))), shown


@register_lowering(aten.nll_loss_backward.default)
def nll_loss_backward(
    low: LoweringContext,
    gradient: LoweredTensor,
    a: LoweredTensor,
    target: LoweredTensor,
    weight: LoweredTensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: LoweredTensor,
) -> LoweredTensor:
    """Minus the loss's gradient at each sample's class, zero elsewhere: nothing is scattered."""
    check_supported_dtype(a)
    if len(a.shape) == 1:
        raise NotLowered("the loss of a single sample is computed by ATen")
    held = torch.float32 if a.dtype in (torch.float16, torch.bfloat16) else a.dtype
    name = low.current_node.name if low.current_node is not None else "nll"

    def at_class(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        wanted = target.load(b, i)
        is_kept = b.call("ne", wanted, b.constant(ignore_index, wanted.dtype), dtype=torch.bool)
        value = b.call("neg", b.cast(gradient.load(b, i if gradient.shape else ()), held))
        if reduction == 1:
            value = b.call("div", value, b.cast(total_weight.load(b, ()), held))
        if weight is not None:
            place = b.indirect_index(b.where(is_kept, wanted, b.constant(0, wanted.dtype)), a.shape[-1])
            value = b.call("mul", value, b.cast(weight.load(b, (place,)), held))
        return b.where(is_kept, value, b.constant(0.0, held))

    each = low.pointwise((a.shape[0],), held, at_class, name=f"{name}_each")

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        wanted = b.cast(target.load(b, i[:1]), torch.int64)
        is_here = b.call("eq", b.cast(b.index_value(i[1]), torch.int64), wanted, dtype=torch.bool)
        return b.where(is_here, each.load(b, i[:1]), b.constant(0.0, held))

    return low.pointwise(a.shape, a.dtype, body)
