"""Indirect reads and tensors made from nothing: embedding, gather, index, arange, full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from engine.ir.index import Index, Size, plain
from engine.ir.loops import Builder, Coordinates, Op
from engine.lowering.ops.reductions import reduce
from engine.lowering.ops.views import as_row, broadcast_to
from engine.lowering.table import (
    Lowering,
    NotLowered,
    Tensor,
    broadcast_shape,
    check_loopable,
    is_fraction,
    lowers,
    positive_dim,
    result_value,
    sizes_of,
)

aten = torch.ops.aten
prims = torch.ops.prims


@lowers(aten.embedding.default)
def embedding(low: Lowering, weight: Tensor, indices: Tensor, *_: Any) -> Tensor:
    check_loopable(weight)
    rows = weight.shape[0]
    shape = sizes_of(result_value(low))
    return low.pointwise(
        shape, weight.dtype, lambda b, i: weight.at(b, (b.picked(indices.at(b, i[:-1]), rows, wraps=False), i[-1]))
    )


@lowers(aten.index_select.default)
def index_select(low: Lowering, a: Tensor, dim: int, indices: Tensor) -> Tensor:
    check_loopable(a)
    row, places, dim = as_row(a), as_row(indices), positive_dim(dim, len(a.shape))

    def body(b: Builder, i: Coordinates) -> Op:
        here = places.at(b, (i[dim] if i else Index(),))
        return row.at(b, (*i[:dim], b.picked(here, row.shape[dim], wraps=False), *i[dim + 1 :]))

    return low.pointwise(sizes_of(result_value(low)), a.dtype, body)


@lowers(aten.gather.default)
def gather(low: Lowering, a: Tensor, dim: int, indices: Tensor, **_: Any) -> Tensor:
    check_loopable(a)
    row, dim = as_row(a), positive_dim(dim, len(a.shape))
    return low.pointwise(
        indices.shape,
        a.dtype,
        lambda b, i: row.at(b, (*i[:dim], b.picked(indices.at(b, i), row.shape[dim], wraps=False), *i[dim + 1 :])),
    )


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(low: Lowering, a: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    check_loopable(a)
    given = [t for t in indices if t is not None]
    if any(t.dtype in (torch.bool, torch.uint8) for t in given):
        raise NotLowered("a boolean index gives a result whose size depends on the data")
    picked_shape = broadcast_shape(given)
    spread = {d: broadcast_to(t, picked_shape) for d, t in enumerate(indices) if t is not None}
    places = sorted(spread)
    is_together = places == list(range(places[0], places[0] + len(places)))
    start = places[0] if is_together else 0
    is_checked = low.node is None or low.node.target is not aten._unsafe_index.Tensor
    shape = sizes_of(result_value(low))
    others = [d for d in range(len(a.shape)) if d not in spread]

    def body(b: Builder, i: Coordinates) -> Op:
        where = i[start : start + len(picked_shape)]
        rest = dict(zip(others, (*i[:start], *i[start + len(picked_shape) :]), strict=True))
        return a.at(
            b,
            tuple(
                b.picked(spread[d].at(b, where), a.shape[d], is_checked=is_checked) if d in spread else rest[d]
                for d in range(len(a.shape))
            ),
        )

    return low.pointwise(shape, a.dtype, body)


@lowers(aten.full.default, aten.full_like.default, aten.new_full.default)
def full(low: Lowering, *args: Any, **_: Any) -> Tensor:
    value = result_value(low)
    fill = args[-1]
    check_loopable(value)
    if isinstance(fill, Tensor):
        raise NotLowered("a fill value held in a tensor is filled in by ATen")
    return _filled(low, value, fill)


def _filled(low: Lowering, value: torch.Tensor, fill: Any) -> Tensor:
    dtype = value.dtype
    if isinstance(fill, (bool, int, float)):
        return low.pointwise(sizes_of(value), dtype, lambda b, i: b.constant(fill, dtype))
    if isinstance(fill, complex):
        raise NotLowered("complex numbers are computed by ATen")
    if is_fraction(fill) and not dtype.is_floating_point:
        raise NotLowered("whole numbers filled in from a fraction are left to ATen")
    return low.pointwise(sizes_of(value), dtype, lambda b, i: b.constant(fill, dtype))


@lowers(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
def zeros(low: Lowering, *_: Any, **__: Any) -> Tensor:
    check_loopable(result_value(low))
    return _filled(low, result_value(low), 0)


@lowers(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(low: Lowering, *_: Any, **__: Any) -> Tensor:
    check_loopable(result_value(low))
    return _filled(low, result_value(low), 1)


@lowers(aten.fill.Scalar)
def fill(low: Lowering, a: Tensor, value: Any) -> Tensor:
    check_loopable(a)
    return _filled(low, result_value(low), value)


@lowers(aten.scalar_tensor.default)
def scalar_tensor(low: Lowering, value: Any, **_: Any) -> Tensor:
    check_loopable(result_value(low))
    return _filled(low, result_value(low), value)


def _arange(low: Lowering, start: Any, step: Any) -> Tensor:
    value = result_value(low)
    check_loopable(value)
    dtype = value.dtype
    if is_fraction(start) or is_fraction(step):
        raise NotLowered("a sequence with fractions that follow from sizes is made by ATen")

    def body(b: Builder, i: Coordinates) -> Op:
        if isinstance(start, float) or isinstance(step, float):
            held = torch.float64 if dtype == torch.float64 else torch.float32
            place = b.cast(b.position(i[0]), held)
            return b.cast(
                b.call("add", b.call("mul", place, b.constant(float(step), held)), b.constant(float(start), held)),
                dtype,
            )
        place = b.position(i[0])
        if dtype == torch.int64 or not (isinstance(start, int) and isinstance(step, int)):
            place = b.cast(place, torch.int64)
        if step != 1:
            place = b.call("mul", place, b.size(plain(step), place.dtype))
        if start != 0:
            place = b.call("add", place, b.size(plain(start), place.dtype))
        return b.cast(place, dtype)

    return low.pointwise(sizes_of(value), dtype, body)


@lowers(aten.arange.default)
def arange(low: Lowering, end: Any, **_: Any) -> Tensor:
    return _arange(low, 0, 1)


@lowers(aten.arange.start)
def arange_start(low: Lowering, start: Any, end: Any, **_: Any) -> Tensor:
    return _arange(low, start, 1)


@lowers(aten.arange.start_step)
def arange_step(low: Lowering, start: Any, end: Any, step: Any = 1, **_: Any) -> Tensor:
    return _arange(low, start, step)


@lowers(prims.iota.default)
def iota(low: Lowering, length: Any, *, start: Any, step: Any, **_: Any) -> Tensor:
    return _arange(low, start, step)


@lowers(aten.nll_loss_forward.default)
def nll_loss_forward(
    low: Lowering, a: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Negative log-likelihood of class indices; the second result is the total weight."""
    check_loopable(a)
    held = torch.float32 if a.dtype in (torch.float16, torch.bfloat16) else a.dtype
    classes = a.shape[-1]
    is_single = len(a.shape) == 1
    count: tuple[Size, ...] = () if is_single else (a.shape[0],)

    def kept(b: Builder, i: Coordinates) -> tuple[Op, Op, Index]:
        wanted = target.at(b, i if target.shape else ())
        is_kept = b.call("ne", wanted, b.constant(ignore_index, wanted.dtype), dtype=torch.bool)
        safe = b.where(is_kept, wanted, b.constant(0, wanted.dtype))
        place = b.picked(safe, classes, wraps=False)
        factor = b.constant(1.0, held) if weight is None else b.cast(weight.at(b, (place,)), held)
        return is_kept, factor, place

    def loss(b: Builder, i: Coordinates) -> Op:
        is_kept, factor, place = kept(b, i)
        likelihood = b.cast(a.at(b, (place,) if is_single else (*i, place)), held)
        value = b.call("neg", likelihood if weight is None else b.call("mul", likelihood, factor))
        return b.where(is_kept, value, b.constant(0.0, held))

    def weighed(b: Builder, i: Coordinates) -> Op:
        is_kept, factor, _ = kept(b, i)
        return b.where(is_kept, factor, b.constant(0.0, held))

    name = low.node.name if low.node is not None else "nll"
    losses = low.pointwise(count, held, loss, name=f"{name}_each")
    if reduction == 0 and not is_single:
        return low.pointwise(count, a.dtype, losses.at), low.pointwise((), a.dtype, lambda b, i: b.constant(0.0, held))
    if is_single:
        own_weight = low.pointwise((), a.dtype, (lambda b, i: b.constant(0.0, held)) if reduction == 0 else weighed)
        if reduction != 1:
            return low.pointwise((), a.dtype, loss), own_weight
        return low.pointwise((), a.dtype, lambda b, i: b.call("div", loss(b, i), weighed(b, i))), own_weight
    # One element of each row is picked where the rows are reduced, not by the one program that adds them up.
    low.apart.add(losses.base)
    weights = low.pointwise(count, held, weighed, name=f"{name}_weights")
    total = reduce(low, "sum", losses, (0,), False, held, losses.at, name=f"{name}_sum")
    weight_sum = reduce(low, "sum", weights, (0,), False, held, weights.at, name=f"{name}_weight")
    shown = low.pointwise((), a.dtype, weight_sum.at)
    if reduction == 2:
        return low.pointwise((), a.dtype, total.at), shown
    return low.pointwise((), a.dtype, lambda b, i: b.call("div", total.at(b, i), weight_sum.at(b, i))), shown


@lowers(aten.nll_loss_backward.default)
def nll_loss_backward(
    low: Lowering,
    gradient: Tensor,
    a: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """Minus the loss's gradient at each sample's class, zero elsewhere: nothing is scattered."""
    check_loopable(a)
    if len(a.shape) == 1:
        raise NotLowered("the loss of a single sample is computed by ATen")
    held = torch.float32 if a.dtype in (torch.float16, torch.bfloat16) else a.dtype
    name = low.node.name if low.node is not None else "nll"

    def at_class(b: Builder, i: Coordinates) -> Op:
        wanted = target.at(b, i)
        is_kept = b.call("ne", wanted, b.constant(ignore_index, wanted.dtype), dtype=torch.bool)
        value = b.call("neg", b.cast(gradient.at(b, i if gradient.shape else ()), held))
        if reduction == 1:
            value = b.call("div", value, b.cast(total_weight.at(b, ()), held))
        if weight is not None:
            place = b.picked(b.where(is_kept, wanted, b.constant(0, wanted.dtype)), a.shape[-1])
            value = b.call("mul", value, b.cast(weight.at(b, (place,)), held))
        return b.where(is_kept, value, b.constant(0.0, held))

    each = low.pointwise((a.shape[0],), held, at_class, name=f"{name}_each")

    def body(b: Builder, i: Coordinates) -> Op:
        wanted = b.cast(target.at(b, i[:1]), torch.int64)
        is_here = b.call("eq", b.cast(b.position(i[1]), torch.int64), wanted, dtype=torch.bool)
        return b.where(is_here, each.at(b, i[:1]), b.constant(0.0, held))

    return low.pointwise(a.shape, a.dtype, body)
