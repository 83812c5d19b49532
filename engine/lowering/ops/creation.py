"""Lowerings of factory operators: full, arange and others."""

from __future__ import annotations

from typing import Any

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import as_size
from engine.ir.loop_ir.ops import LoopIROp
from engine.ir.loop_ir.tensor_def import Coordinates
from engine.lowering.context import LoweredTensor, LoweringContext, fake_result
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.ops.indexing import aten, prims
from engine.lowering.promotion import check_supported_dtype, is_float_expr
from engine.lowering.registry import register_lowering
from engine.lowering.result_strides import symbolic_shape


@register_lowering(aten.full.default, aten.full_like.default, aten.new_full.default)
def full(low: LoweringContext, *args: Any, **_: Any) -> LoweredTensor:
    value = fake_result(low)
    fill = args[-1]
    check_supported_dtype(value)
    if isinstance(fill, LoweredTensor):
        raise NotLowered(LoweringFallback.MIXED_DTYPES, "a fill value that is a tensor has no lowering")
    return _full(low, value, fill)


def _full(low: LoweringContext, value: torch.Tensor, fill: Any) -> LoweredTensor:
    dtype = value.dtype
    if isinstance(fill, (bool, int, float)):
        return low.pointwise(symbolic_shape(value), dtype, lambda b, i: b.constant(fill, dtype))
    if isinstance(fill, complex):
        raise NotLowered(LoweringFallback.COMPLEX_NUMBER, "a complex fill value has no lowering")
    if is_float_expr(fill) and not dtype.is_floating_point:
        raise NotLowered(
            LoweringFallback.MIXED_DTYPES, "an integer tensor with a fractional fill value has no lowering"
        )
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
        raise NotLowered(
            LoweringFallback.SYMBOLIC_SIZE,
            "an integer range with fractional bounds computed from sizes has no lowering",
        )

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
