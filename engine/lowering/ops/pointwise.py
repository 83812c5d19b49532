"""Elementwise operators: arithmetic, comparisons, casts, activations."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.ops import LoopIROp
from engine.lowering.context import LoweredTensor, LoweringContext, fake_result, lowered_tensors
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.promotion import (
    ALWAYS_BOOL,
    DEFAULT,
    INT_TO_FLOAT,
    NO_OPMATH,
    broadcast_loader,
    broadcast_shape,
    check_fill_value,
    check_strided,
    check_supported_dtype,
    is_float_expr,
    number_type,
    promote_dtypes,
    stored_loader,
)
from engine.lowering.registry import register_lowering

aten = torch.ops.aten
prims = torch.ops.prims

ElementwiseFn = Callable[..., LoopIROp]
"""``(builder, *operands) -> value``; operands and value are in their compute dtypes."""


def elementwise(
    low: LoweringContext,
    args: Sequence[Any],
    compute: ElementwiseFn,
    kind: Any = DEFAULT,
    dtypes: tuple[torch.dtype, torch.dtype] | None = None,
) -> LoweredTensor:
    """Define a pointwise tensor over broadcast operands, with eager's type promotion.

    ``dtypes`` overrides (compute dtype, result dtype).
    """
    math_dtype, result = dtypes or promote_dtypes(args, kind)
    shape = broadcast_shape(args)
    operands = [broadcast_loader(a, math_dtype, shape) for a in args]
    return low.pointwise(shape, result, lambda b, index: b.cast(compute(b, *(o(b, index) for o in operands)), result))


def _elementwise_on_stored(
    low: LoweringContext, args: Sequence[Any], compute: ElementwiseFn, result: torch.dtype | None = None
) -> LoweredTensor:
    """Define a pointwise tensor over operands that are rounded to their common dtype.

    Eager computes so where an error of the operand makes a large error of the result.
    """
    dtype, shape = promote_dtypes(args, NO_OPMATH)[0], broadcast_shape(args)
    result = result or dtype
    operands = [stored_loader(a, dtype, shape) for a in args]
    return low.pointwise(shape, result, lambda b, index: b.cast(compute(b, *(o(b, index) for o in operands)), result))


def register_elementwise(*operators: Any, promotion: Any = DEFAULT) -> Callable[[ElementwiseFn], ElementwiseFn]:
    """Register ``elementwise`` of a function as the lowering of operators on operands only."""

    def register(compute: ElementwiseFn) -> ElementwiseFn:
        register_lowering(*operators)(lambda low, *args: elementwise(low, args, compute, promotion))
        return compute

    return register


def _call_op(name: str) -> ElementwiseFn:
    return lambda b, *args: b.call(name, *args)


def _unary(name: str, kind: Any, *operators: Any) -> None:
    @register_lowering(*operators)
    def lowered(low: LoweringContext, a: LoweredTensor) -> LoweredTensor:
        if kind is DEFAULT and not a.dtype.is_floating_point and name in ("floor", "ceil", "trunc", "round"):
            return elementwise(low, (a,), lambda b, v: v)
        return elementwise(low, (a,), _call_op(name), kind)


for _name in ("exp", "exp2", "log", "log2", "log1p", "expm1", "sin", "cos", "tanh", "erf", "sqrt", "rsqrt", "sigmoid"):
    _unary(_name, INT_TO_FLOAT, getattr(aten, _name).default)
for _name in ("sinh", "cosh", "tan", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erfc", "erfinv", "lgamma"):
    _unary(_name, INT_TO_FLOAT, getattr(aten, _name).default)
for _name, _operator in (
    ("i0", aten.i0.default),
    ("i0", aten.special_modified_bessel_i0.default),
    ("i1", aten.special_i1.default),
    ("i1", aten.special_modified_bessel_i1.default),
    ("j0", aten.special_bessel_j0.default),
    ("j1", aten.special_bessel_j1.default),
    ("y0", aten.special_bessel_y0.default),
    ("y1", aten.special_bessel_y1.default),
    ("erfcx", aten.special_erfcx.default),
):
    _unary(_name, INT_TO_FLOAT, _operator)
for _name in ("neg", "abs", "floor", "ceil", "trunc", "round"):
    _unary(_name, DEFAULT, getattr(aten, _name).default)
_unary("neg", DEFAULT, aten._neg_view.default)  # a kernel reads memory, where the negation is not yet done


register_elementwise(aten.log10.default, promotion=INT_TO_FLOAT)(lambda b, v: b.call("log2", v) * math.log10(2.0))
register_elementwise(aten.reciprocal.default, promotion=INT_TO_FLOAT)(lambda b, v: 1.0 / v)
register_elementwise(aten.square.default)(lambda b, v: v * v)


@register_elementwise(aten.sign.default, aten.sgn.default)
def sign(b: LoopBuilder, v: LoopIROp) -> LoopIROp:
    """Return 1, 0 or -1; bool and unsigned numbers have no -1."""
    if v.dtype == torch.bool:
        return v
    zero = b.constant(0, v.dtype)
    below = zero if v.dtype == torch.uint8 else b.where(v < 0, -1, zero)
    return b.where(v > 0, 1, below)


def _add_or_sub(low: LoweringContext, a: Any, other: Any, alpha: Any = 1, *, name: str) -> LoweredTensor:
    if name == "sub" and any(getattr(v, "dtype", type(v)) in (bool, torch.bool) for v in (a, other)):
        raise NotLowered(LoweringFallback.ERROR_IN_ATEN, "subtraction of bool is an error in eager")

    def compute(b: LoopBuilder, left: LoopIROp, right: LoopIROp) -> LoopIROp:
        if left.dtype == torch.bool:
            return b.call("or", left, right)
        if alpha != 1:
            right = right * alpha
        return b.call(name, left, right)

    return elementwise(low, (a, other), compute)


register_lowering(aten.add.Tensor, aten.add.Scalar)(functools.partial(_add_or_sub, name="add"))
register_lowering(aten.sub.Tensor, aten.sub.Scalar)(functools.partial(_add_or_sub, name="sub"))


@register_lowering(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(low: LoweringContext, a: Any, other: Any, alpha: Any = 1) -> Any:
    return _add_or_sub(low, other, a, alpha, name="sub")


@register_elementwise(aten.mul.Tensor, aten.mul.Scalar)
def mul(b: LoopBuilder, x: LoopIROp, y: LoopIROp) -> LoopIROp:
    """Multiply; of bools the product is their conjunction."""
    return b.call("and" if x.dtype == torch.bool else "mul", x, y)


register_elementwise(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor, promotion=INT_TO_FLOAT)(
    lambda b, x, y: x / y
)


@register_lowering(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(low: LoweringContext, a: Any, other: Any, rounding_mode: str | None = None) -> LoweredTensor:
    if rounding_mode is None:
        return elementwise(low, (a, other), lambda b, x, y: x / y, INT_TO_FLOAT)
    if rounding_mode == "floor":
        return elementwise(low, (a, other), floor_divide)

    def compute(b: LoopBuilder, x: LoopIROp, y: LoopIROp) -> LoopIROp:
        return b.call("trunc", x / y) if x.dtype.is_floating_point else b.call("truncdiv", x, y)

    return elementwise(low, (a, other), compute)


def _rounds_up(rest: LoopIROp, divisor: LoopIROp) -> LoopIROp:
    """Return True where a quotient that is rounded towards zero is above the floor."""
    return rest.differs(0) & (rest < 0).differs(divisor < 0)


@register_elementwise(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(b: LoopBuilder, x: LoopIROp, y: LoopIROp) -> LoopIROp:
    """Divide and round down; floats are rounded as Python rounds them."""
    if not x.dtype.is_floating_point:
        quotient, rest = b.call("truncdiv", x, y), b.call("rem", x, y)
        if x.dtype == torch.uint8:
            return quotient
        return b.where(_rounds_up(rest, y), quotient - 1, quotient)
    rest = b.call("fmod", x, y)
    quotient = (x - rest) / y
    inexact = rest.differs(0.0)
    opposite = (rest < 0.0).differs(y < 0.0)
    quotient = b.where(inexact & opposite, quotient - 1.0, quotient)
    floored = b.call("floor", quotient)
    over = quotient - floored > 0.5
    floored = b.where(over, floored + 1.0, floored)
    ratio = x / y
    floored = b.where(quotient.equals(0.0), b.call("copysign", 0.0, ratio), floored)
    return b.where(y.equals(0.0), ratio, floored)


def _fmod(b: LoopBuilder, x: LoopIROp, y: LoopIROp) -> LoopIROp:
    """Return the remainder of a division that rounds towards zero."""
    return b.call("fmod" if x.dtype.is_floating_point else "rem", x, y)


def _remainder(b: LoopBuilder, x: LoopIROp, y: LoopIROp) -> LoopIROp:
    """Return the remainder of a division that rounds down."""
    rest = _fmod(b, x, y)
    return rest if x.dtype == torch.uint8 else b.where(_rounds_up(rest, y), rest + y, rest)


register_lowering(aten.fmod.Tensor, aten.fmod.Scalar)(lambda low, *args: _elementwise_on_stored(low, args, _fmod))
register_lowering(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)(
    lambda low, *args: _elementwise_on_stored(low, args, _remainder)
)


for _name in ("maximum", "minimum", "hypot"):
    register_elementwise(getattr(aten, _name).default)(_call_op(_name))
register_elementwise(aten.atan2.default, promotion=INT_TO_FLOAT)(_call_op("atan2"))


@register_lowering(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_of_tensor(low: LoweringContext, base: Any, exponent: LoweredTensor) -> LoweredTensor:
    is_float = promote_dtypes((base, exponent))[1].is_floating_point
    return elementwise(low, (base, exponent), _call_op("pow") if is_float else _integer_power)


@register_lowering(aten.pow.Tensor_Scalar)
def pow_scalar(low: LoweringContext, a: LoweredTensor, exponent: Any) -> LoweredTensor:
    if is_float_expr(exponent) and promote_dtypes((a, exponent))[1].is_floating_point:
        return elementwise(low, (a, exponent), _call_op("pow"))
    if not isinstance(exponent, (int, float)) or isinstance(exponent, bool):
        raise NotLowered(
            LoweringFallback.OPERATOR_MODE, f"a power has no lowering for an exponent of type {type(exponent).__name__}"
        )
    is_float = promote_dtypes((a, exponent))[1].is_floating_point
    is_small = float(exponent).is_integer() and abs(exponent) <= 16
    if (is_small and is_float) or (isinstance(exponent, int) and exponent >= 0 and not is_float):
        return elementwise(low, (a, exponent), lambda b, v, _: _constant_integer_power(b, v, int(exponent)))
    root = {0.5: "sqrt", -0.5: "rsqrt"}.get(exponent)
    if root is not None and (a.dtype != torch.float16 or fake_result(low).device.type != "cpu"):
        return elementwise(low, (a, exponent), lambda b, v, _: b.call(root, v))
    if not is_float:
        raise NotLowered(LoweringFallback.ERROR_IN_ATEN, "an integer to a negative power raises an error in ATen")
    return elementwise(low, (a, exponent), _call_op("pow"))


def _constant_integer_power(b: LoopBuilder, v: LoopIROp, exponent: int) -> LoopIROp:
    if exponent < 0:
        return 1.0 / _constant_integer_power(b, v, -exponent)
    if exponent == 0:
        return b.constant(1, v.dtype)
    half = _constant_integer_power(b, v, exponent // 2) if exponent > 1 else None
    squared = v if half is None else half * half
    return squared if exponent % 2 == 0 or half is None else squared * v


def _integer_power(b: LoopBuilder, base: LoopIROp, exponent: LoopIROp) -> LoopIROp:
    """Compute an integer power by squaring, one bit of the exponent at a time.

    Products wrap around as in eager. With a negative exponent only 1 and -1 have a power other than 0.
    """
    dtype = base.dtype
    one = b.constant(1, dtype)

    def bit(k: int) -> LoopIROp:
        return b.call("and", exponent, 1 << k).differs(0)

    total, square = one, base
    for k in range(torch.iinfo(dtype).bits - dtype.is_signed):
        square = square * square if k else square
        total = b.where(bit(k), total * square, total)
    if not dtype.is_signed:
        return total
    of_minus = b.where(base.equals(-1), b.where(bit(0), -1, one), 0)
    inverse = b.where(base.equals(1), 1, of_minus)
    return b.where(exponent < 0, inverse, total)


def _comparison(name: str) -> None:
    packet = getattr(aten, name)

    @register_lowering(packet.Tensor, packet.Scalar)
    def lowered(low: LoweringContext, a: Any, other: Any) -> LoweredTensor:
        return _elementwise_on_stored(low, (a, other), lambda b, x, y: b.call(name, x, y, dtype=torch.bool), torch.bool)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _comparison(_name)


def _as_bool(b: LoopBuilder, v: LoopIROp) -> LoopIROp:
    return v if v.dtype == torch.bool else v.differs(0)


def _logical(name: str, op: str) -> None:
    register_elementwise(getattr(aten, name).default, promotion=ALWAYS_BOOL)(
        lambda b, x, y: b.call(op, _as_bool(b, x), _as_bool(b, y), dtype=torch.bool)
    )


for _name, _op in (("logical_and", "and"), ("logical_or", "or"), ("logical_xor", "xor")):
    _logical(_name, _op)


register_elementwise(aten.logical_not.default, promotion=ALWAYS_BOOL)(
    lambda b, v: v.equals(0) if v.dtype != torch.bool else b.call("not", v)
)
for _packet, _op in ((aten.bitwise_and, "and"), (aten.bitwise_or, "or"), (aten.bitwise_xor, "xor")):
    register_elementwise(_packet.Tensor, _packet.Scalar, _packet.Scalar_Tensor)(_call_op(_op))
register_elementwise(aten.bitwise_not.default)(_call_op("not"))
register_elementwise(aten.isnan.default, promotion=ALWAYS_BOOL)(lambda b, v: v.is_nan())


@register_lowering(aten.isinf.default)
def isinf(low: LoweringContext, a: LoweredTensor) -> LoweredTensor:
    def compute(b: LoopBuilder, v: LoopIROp) -> LoopIROp:
        if not v.dtype.is_floating_point:
            return b.constant(False, torch.bool)
        return b.call("abs", v).equals(math.inf)

    math_dtype = a.dtype if not a.dtype.is_floating_point else promote_dtypes((a,))[0]
    return elementwise(low, (a,), compute, dtypes=(math_dtype, torch.bool))


@register_lowering(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(low: LoweringContext, condition: LoweredTensor, a: Any, other: Any) -> LoweredTensor:
    result = fake_result(low).dtype
    shape = broadcast_shape((condition, a, other))
    test = broadcast_loader(condition, torch.bool, shape)
    then, otherwise = (stored_loader(v, result, shape) for v in (a, other))
    return low.pointwise(
        shape, result, lambda b, index: b.where(_as_bool(b, test(b, index)), then(b, index), otherwise(b, index))
    )


@register_lowering(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(low: LoweringContext, a: LoweredTensor, mask: LoweredTensor, value: Any) -> LoweredTensor:
    check_fill_value(a.dtype, value)
    return where(low, mask, value, a)  # type: ignore[no-any-return]


@register_lowering(aten.clamp.default, aten.clamp.Tensor)
def clamp(low: LoweringContext, a: LoweredTensor, min: Any = None, max: Any = None) -> LoweredTensor:
    """Limit values; one that equals a limit stays, so that a zero keeps its sign."""
    present_limits = [v for v in (min, max) if v is not None]

    def compute(b: LoopBuilder, v: LoopIROp, *limits: LoopIROp) -> LoopIROp:
        rest = list(limits)
        if min is not None:
            v = b.call("maximum", rest.pop(0), v)
        return b.call("minimum", rest.pop(0), v) if max is not None else v

    return elementwise(low, (a, *present_limits), compute)


register_lowering(aten.clamp_min.default, aten.clamp_min.Tensor)(clamp)
register_lowering(aten.clamp_max.default, aten.clamp_max.Tensor)(lambda low, a, limit: clamp(low, a, None, limit))


@register_lowering(
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh_copy.default,
    aten.lift_fresh.default,
    aten.contiguous.default,
)
def clone(low: LoweringContext, a: LoweredTensor, memory_format: Any = None) -> LoweredTensor:
    check_supported_dtype(a)
    return low.pointwise(a.shape, a.dtype, a.load)


@register_lowering(aten._to_copy.default, prims.convert_element_type.default)
def to_copy(low: LoweringContext, a: Any, dtype: torch.dtype | None = None, **other: Any) -> LoweredTensor:
    check_strided(other.get("layout"))
    if not lowered_tensors(a):  # vmap converts numbers.
        result = fake_result(low)
        if number_type(a) is float and not result.dtype.is_floating_point:
            raise NotLowered(LoweringFallback.MIXED_DTYPES, "a float operand of an integer operator has no lowering")
        return low.pointwise((), result.dtype, broadcast_loader(a, result.dtype, ()))
    dtype = dtype or a.dtype
    if dtype == torch.bool:
        return low.pointwise(a.shape, dtype, lambda b, index: _as_bool(b, a.load(b, index)))
    return low.pointwise(
        a.shape,
        dtype,
        lambda b, index: b.round_to_dtype(a.load(b, index), dtype) if dtype != a.dtype else a.load(b, index),
    )


@register_lowering(aten.copy.default)
def copy(low: LoweringContext, a: LoweredTensor, source: LoweredTensor, non_blocking: bool = False) -> LoweredTensor:
    value = broadcast_loader(source, a.dtype, a.shape)
    return low.pointwise(a.shape, a.dtype, value)


register_elementwise(aten.relu.default)(lambda b, v: b.call("maximum", v, 0))
register_elementwise(aten.silu.default)(lambda b, v: v * b.call("sigmoid", v))


@register_lowering(aten.gelu.default)
def gelu(low: LoweringContext, a: LoweredTensor, approximate: str = "none") -> LoweredTensor:
    def exact(b: LoopBuilder, v: LoopIROp) -> LoopIROp:
        erf = b.call("erf", v * math.sqrt(0.5))
        return v * 0.5 * (erf + 1.0)

    def by_tanh(b: LoopBuilder, v: LoopIROp) -> LoopIROp:
        cube = v * v * v
        inner = v + cube * 0.044715
        tanh = b.call("tanh", inner * math.sqrt(2.0 / math.pi))
        return v * 0.5 * (tanh + 1.0)

    return elementwise(low, (a,), by_tanh if approximate == "tanh" else exact)


@register_lowering(aten.leaky_relu.default)
def leaky_relu(low: LoweringContext, a: LoweredTensor, negative_slope: float = 0.01) -> LoweredTensor:
    return elementwise(low, (a,), lambda b, v: b.where(v > 0, v, v * negative_slope))


@register_lowering(aten.threshold.default)
def threshold(low: LoweringContext, a: LoweredTensor, threshold: Any, value: Any) -> LoweredTensor:
    """Replace values up to a threshold; among integers, both numbers are rounded towards zero."""
    if not a.dtype.is_floating_point:
        try:
            threshold, value = int(threshold), int(value)
        except (TypeError, ValueError, OverflowError):
            reason = "a threshold of integers has no lowering for symbols and infinite numbers"
            raise NotLowered(LoweringFallback.OPERATOR_MODE, reason) from None
    return elementwise(low, (a, threshold, value), lambda b, v, limit, other: b.where(v <= limit, other, v))


@register_lowering(aten.addcmul.default)
def addcmul(
    low: LoweringContext, a: LoweredTensor, left: LoweredTensor, right: LoweredTensor, value: Any = 1
) -> LoweredTensor:
    def compute(b: LoopBuilder, base: LoopIROp, x: LoopIROp, y: LoopIROp) -> LoopIROp:
        product = x * y
        return base + (product if value == 1 else product * value)

    return elementwise(low, (a, left, right), compute)


@register_lowering(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(low: LoweringContext, a: LoweredTensor, end: LoweredTensor, weight: Any) -> LoweredTensor:
    """Interpolate from the nearer end, as eager does, so that both ends are exact."""
    weights = lowered_tensors(weight)

    def compute(b: LoopBuilder, start: LoopIROp, end: LoopIROp, *shares: LoopIROp) -> LoopIROp:
        share = shares[0] if shares else b.constant(weight, start.dtype)
        way = end - start
        from_start = start + share * way
        rest = 1.0 - share
        from_end = end - way * rest
        if isinstance(weight, (int, float)):
            return from_start if abs(weight) < 0.5 else from_end
        is_near = b.call("abs", share) < 0.5
        return b.where(is_near, from_start, from_end)

    return elementwise(low, (a, end, *weights), compute)
