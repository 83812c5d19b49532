"""Lowerings of nll_loss and its backward."""

from __future__ import annotations

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import IndexExpr, Size
from engine.ir.loop_ir.ops import LoopIROp
from engine.ir.loop_ir.tensor_def import Coordinates
from engine.lowering.context import LoweredTensor, LoweringContext
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.ops.indexing import aten
from engine.lowering.ops.reductions import reduce
from engine.lowering.registry import register_lowering


@register_lowering(aten.nll_loss_forward.default)
def nll_loss_forward(
    low: LoweringContext,
    a: LoweredTensor,
    target: LoweredTensor,
    weight: LoweredTensor | None,
    reduction: int,
    ignore_index: int,
) -> tuple[LoweredTensor, LoweredTensor]:
    """Compute the negative log-likelihood of class indices; return it and the total weight."""
    math_dtype = torch.float32 if a.dtype in (torch.float16, torch.bfloat16) else a.dtype
    classes = a.shape[-1]
    is_single = len(a.shape) == 1
    count: tuple[Size, ...] = () if is_single else (a.shape[0],)

    def load_target(b: LoopBuilder, i: Coordinates) -> tuple[LoopIROp, LoopIROp, IndexExpr]:
        label = target.load(b, i if target.shape else ())
        is_kept = label.differs(ignore_index)
        safe = b.where(is_kept, label, 0)
        position = b.indirect_index(safe, classes, wraps=False)
        factor = b.constant(1.0, math_dtype) if weight is None else b.cast(weight.load(b, (position,)), math_dtype)
        return is_kept, factor, position

    def loss(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        is_kept, factor, position = load_target(b, i)
        likelihood = b.cast(a.load(b, (position,) if is_single else (*i, position)), math_dtype)
        value = -(likelihood if weight is None else likelihood * factor)
        return b.where(is_kept, value, 0.0)

    def weighed(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        is_kept, factor, _ = load_target(b, i)
        return b.where(is_kept, factor, 0.0)

    name = low.node_name
    losses = low.pointwise(count, math_dtype, loss, name=f"{name}_each")
    if reduction == 0 and not is_single:
        return low.pointwise(count, a.dtype, losses.load), low.pointwise(
            (), a.dtype, lambda b, i: b.constant(0.0, math_dtype)
        )
    if is_single:
        own_weight = low.pointwise(
            (), a.dtype, (lambda b, i: b.constant(0.0, math_dtype)) if reduction == 0 else weighed
        )
        if reduction != 1:
            return low.pointwise((), a.dtype, loss), own_weight
        return low.pointwise((), a.dtype, lambda b, i: loss(b, i) / weighed(b, i)), own_weight
    # The rows' own kernel gathers one element per row. The single program that sums them would be slow at that.
    low.no_fuse.add(losses.definition)
    weights = low.pointwise(count, math_dtype, weighed, name=f"{name}_weights")
    total = reduce(low, "sum", losses, (0,), False, math_dtype, losses.load, name=f"{name}_sum")
    weight_sum = reduce(low, "sum", weights, (0,), False, math_dtype, weights.load, name=f"{name}_weight")
    stored_weight = low.pointwise((), a.dtype, weight_sum.load)
    if reduction == 2:
        return low.pointwise((), a.dtype, total.load), stored_weight
    return low.pointwise((), a.dtype, lambda b, i: total.load(b, i) / weight_sum.load(b, i)), stored_weight


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
    """Set minus the loss's gradient at each sample's class, 0 elsewhere, without a scatter."""
    if len(a.shape) == 1:
        raise NotLowered(LoweringFallback.ZERO_DIM, "the loss of a single sample has no lowering")
    math_dtype = torch.float32 if a.dtype in (torch.float16, torch.bfloat16) else a.dtype
    name = low.node_name

    def at_class(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        label = target.load(b, i)
        is_kept = label.differs(ignore_index)
        value = -b.cast(gradient.load(b, i if gradient.shape else ()), math_dtype)
        if reduction == 1:
            value = value / b.cast(total_weight.load(b, ()), math_dtype)
        if weight is not None:
            position = b.indirect_index(b.where(is_kept, label, 0), a.shape[-1])
            value = value * b.cast(weight.load(b, (position,)), math_dtype)
        return b.where(is_kept, value, 0.0)

    each = low.pointwise((a.shape[0],), math_dtype, at_class, name=f"{name}_each")

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        label = b.cast(target.load(b, i[:1]), torch.int64)
        is_here = b.cast(b.index_value(i[1]), torch.int64).equals(label)
        return b.where(is_here, each.load(b, i[:1]), 0.0)

    return low.pointwise(a.shape, a.dtype, body)
