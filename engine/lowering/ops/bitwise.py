"""Shifts, copysign, nextafter, fmax, fmin, signbit, rounding to decimals, gcd and lcm."""

from __future__ import annotations

import functools
from typing import Any

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.ops import LoopIROp
from engine.lowering.context import LoweredTensor, LoweringContext
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.ops.pointwise import ElementwiseFn, elementwise, register_elementwise
from engine.lowering.promotion import ALWAYS_BOOL, INT_TO_FLOAT, promote_dtypes
from engine.lowering.registry import register_lowering

aten = torch.ops.aten


def _shift(low: LoweringContext, a: Any, other: Any, name: str) -> LoweredTensor:
    dtype = promote_dtypes((a, other))[1]
    if dtype == torch.bool or dtype.is_floating_point:
        raise NotLowered(LoweringFallback.NEEDS_INTEGERS, "a shift of other values than integers has no lowering")
    width = torch.iinfo(dtype).bits

    def compute(b: LoopBuilder, value: LoopIROp, by: LoopIROp) -> LoopIROp:
        """Shift as eager does: a distance out of range yields 0, or the sign for a right shift.

        In C the result would be undefined.
        """
        zero, most = b.constant(0, dtype), b.constant(width - 1, dtype)
        too_far = by > most
        if dtype != torch.uint8:
            too_far = too_far | (by < zero)
        if name == "shr":
            emptied = zero if dtype == torch.uint8 else b.call("shr", value, most)
            return b.where(too_far, emptied, b.call("shr", value, b.where(too_far, most, by)))
        return b.where(too_far, zero, b.call("shl", value, b.where(too_far, zero, by)))

    return elementwise(low, (a, other), compute)


for _name, _shifted, _operator in (
    ("shl", aten.bitwise_left_shift, aten.__lshift__),
    ("shr", aten.bitwise_right_shift, aten.__rshift__),
):
    register_lowering(
        _shifted.Tensor, _shifted.Tensor_Scalar, _shifted.Scalar_Tensor, _operator.Tensor, _operator.Scalar
    )(functools.partial(_shift, name=_name))


register_elementwise(aten.copysign.Tensor, aten.copysign.Scalar, promotion=INT_TO_FLOAT)(
    lambda b, x, y: b.call("copysign", x, y)
)
register_elementwise(aten.gcd.default)(lambda b, x, y: b.call("common_divisor", x, y))


@register_lowering(aten.nextafter.default)
def nextafter(low: LoweringContext, a: LoweredTensor, other: LoweredTensor) -> LoweredTensor:
    if promote_dtypes((a, other))[1] not in (torch.float32, torch.float64):
        raise NotLowered(LoweringFallback.HALF_PRECISION, "nextafter of 16-bit numbers has no lowering")
    return elementwise(low, (a, other), lambda b, x, y: b.call("nextafter", x, y))


def _ignoring_nan(name: str) -> ElementwiseFn:
    def compute(b: LoopBuilder, x: LoopIROp, y: LoopIROp) -> LoopIROp:
        value = b.call(name, x, y)
        if not x.dtype.is_floating_point:
            return value
        value = b.where(y.is_nan(), x, value)
        return b.where(x.is_nan(), y, value)

    return compute


register_elementwise(aten.fmax.default)(_ignoring_nan("maximum"))
register_elementwise(aten.fmin.default)(_ignoring_nan("minimum"))


@register_lowering(aten.round.decimals)
def round_decimals(low: LoweringContext, a: LoweredTensor, *, decimals: int = 0) -> LoweredTensor:
    if a.dtype not in (torch.float32, torch.float64):
        raise NotLowered(
            LoweringFallback.HALF_PRECISION, "rounding to decimals has a lowering only for 32-bit and 64-bit numbers"
        )
    scale = float(10 ** abs(decimals))

    def compute(b: LoopBuilder, v: LoopIROp) -> LoopIROp:
        if decimals == 0:
            return b.call("round", v)
        there, back = ("mul", "div") if decimals > 0 else ("div", "mul")
        return b.call(back, b.call("round", b.call(there, v, scale)), scale)

    return elementwise(low, (a,), compute)


@register_lowering(aten.signbit.default)
def signbit(low: LoweringContext, a: LoweredTensor) -> LoweredTensor:
    math_dtype = promote_dtypes((a,))[0] if a.dtype.is_floating_point else a.dtype

    def compute(b: LoopBuilder, v: LoopIROp) -> LoopIROp:
        if v.dtype == torch.bool:
            return b.constant(False, torch.bool)
        if v.dtype.is_floating_point:
            v = b.call("copysign", 1.0, v)
        return v < 0

    return elementwise(low, (a,), compute, ALWAYS_BOOL, dtypes=(math_dtype, torch.bool))


@register_elementwise(aten.lcm.default)
def lcm(b: LoopBuilder, x: LoopIROp, y: LoopIROp) -> LoopIROp:
    """Return the least common multiple, which is 0 where both numbers are."""
    divisor = b.call("common_divisor", x, y)
    is_zero = divisor.equals(0)
    quotient = b.call("truncdiv", x, b.where(is_zero, 1, divisor))
    return b.where(is_zero, 0, b.call("abs", quotient * y))
