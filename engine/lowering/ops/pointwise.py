"""Elementwise operators: arithmetic, comparisons, casts, activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.ir.loops import Builder, Op
from engine.lowering.table import (
    ALWAYS_BOOL,
    DEFAULT,
    INT_TO_FLOAT,
    Lowering,
    NotLowered,
    Tensor,
    broadcast_shape,
    check_loopable,
    element,
    is_fraction,
    lowers,
    promoted,
    result_value,
)

aten = torch.ops.aten
prims = torch.ops.prims

Compute = Callable[..., Op]
"""``(builder, *operands in the computing dtype) -> value`` in the computing dtype of the result."""


def elementwise(
    low: Lowering,
    args: Sequence[Any],
    compute: Compute,
    kind: Any = DEFAULT,
    dtypes: tuple[torch.dtype, torch.dtype] | None = None,
) -> Tensor:
    """A pointwise tensor over broadcast operands, promoted as eager promotes them; ``dtypes`` overrides (computing, result)."""
    check_loopable(*args)
    held, result = dtypes or promoted(args, kind)
    for dtype in (held, result):
        check_loopable(torch.empty(0, dtype=dtype, device="meta"))
    shape = broadcast_shape(args)
    operands = [element(a, held, shape) for a in args]
    return low.pointwise(shape, result, lambda b, index: b.cast(compute(b, *(o(b, index) for o in operands)), result))


def _named(name: str) -> Compute:
    return lambda b, *args: b.call(name, *args)


def _unary(name: str, kind: Any, *operators: Any) -> None:
    @lowers(*operators)
    def lowered(low: Lowering, a: Tensor) -> Tensor:
        if kind is DEFAULT and not a.dtype.is_floating_point and name in ("floor", "ceil", "trunc", "round"):
            return elementwise(low, (a,), lambda b, v: v)
        return elementwise(low, (a,), _named(name), kind)


for _name in ("exp", "exp2", "log", "log2", "log1p", "expm1", "sin", "cos", "tanh", "erf", "sqrt", "rsqrt", "sigmoid"):
    _unary(_name, INT_TO_FLOAT, getattr(aten, _name).default)
for _name in ("sinh", "cosh", "tan", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erfc", "erfinv", "lgamma"):
    _unary(_name, INT_TO_FLOAT, getattr(aten, _name).default)
for _name, _operator in (
    ("i0", aten.i0.default),
    ("i1", aten.special_i1.default),
    ("j0", aten.special_bessel_j0.default),
    ("j1", aten.special_bessel_j1.default),
    ("y0", aten.special_bessel_y0.default),
    ("y1", aten.special_bessel_y1.default),
    ("erfcx", aten.special_erfcx.default),
):
    _unary(_name, INT_TO_FLOAT, _operator)
for _name in ("neg", "abs", "floor", "ceil", "trunc", "round"):
    _unary(_name, DEFAULT, getattr(aten, _name).default)


@lowers(aten.log10.default)
def log10(low: Lowering, a: Tensor) -> Tensor:
    return elementwise(
        low, (a,), lambda b, v: b.call("mul", b.call("log2", v), b.constant(math.log10(2.0), v.dtype)), INT_TO_FLOAT
    )


@lowers(aten.reciprocal.default)
def reciprocal(low: Lowering, a: Tensor) -> Tensor:
    return elementwise(low, (a,), lambda b, v: b.call("div", b.constant(1.0, v.dtype), v), INT_TO_FLOAT)


@lowers(aten.sign.default, aten.sgn.default)
def sign(low: Lowering, a: Tensor) -> Tensor:
    def compute(b: Builder, v: Op) -> Op:
        if v.dtype == torch.bool:
            return v
        zero, one = b.constant(0, v.dtype), b.constant(1, v.dtype)
        below = b.where(b.call("lt", v, zero, dtype=torch.bool), b.constant(-1, v.dtype), zero)
        if v.dtype == torch.uint8:
            below = zero
        return b.where(b.call("gt", v, zero, dtype=torch.bool), one, below)

    return elementwise(low, (a,), compute)


@lowers(aten.square.default)
def square(low: Lowering, a: Tensor) -> Tensor:
    return elementwise(low, (a,), lambda b, v: b.call("mul", v, v))


def _scaled(name: str) -> Callable[..., Tensor]:
    def lowered(low: Lowering, a: Any, other: Any, alpha: Any = 1) -> Tensor:
        def compute(b: Builder, left: Op, right: Op) -> Op:
            if left.dtype == torch.bool:
                if name == "sub":
                    raise NotLowered("subtraction of bool is an error in eager")
                return b.call("or", left, right)
            if alpha != 1:
                right = b.call("mul", right, b.constant(alpha, left.dtype))
            return b.call(name, left, right)

        return elementwise(low, (a, other), compute)

    return lowered


lowers(aten.add.Tensor, aten.add.Scalar)(_scaled("add"))
lowers(aten.sub.Tensor, aten.sub.Scalar)(_scaled("sub"))


@lowers(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(low: Lowering, a: Any, other: Any, alpha: Any = 1) -> Any:
    return _scaled("sub")(low, other, a, alpha)


@lowers(aten.mul.Tensor, aten.mul.Scalar)
def mul(low: Lowering, a: Any, other: Any) -> Tensor:
    return elementwise(low, (a, other), lambda b, x, y: b.call("and" if x.dtype == torch.bool else "mul", x, y))


@lowers(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def div(low: Lowering, a: Any, other: Any) -> Tensor:
    def compute(b: Builder, x: Op, y: Op) -> Op:
        return b.call("div", x, y)

    return elementwise(low, (a, other), compute, INT_TO_FLOAT)


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(low: Lowering, a: Any, other: Any, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is None:
        return div(low, a, other)  # type: ignore[no-any-return]
    if rounding_mode == "floor":
        return floor_divide(low, a, other)  # type: ignore[no-any-return]

    def compute(b: Builder, x: Op, y: Op) -> Op:
        return b.call("trunc", b.call("div", x, y)) if x.dtype.is_floating_point else b.call("truncdiv", x, y)

    return elementwise(low, (a, other), compute)


def _floor_division(b: Builder, x: Op, y: Op) -> Op:
    if not x.dtype.is_floating_point:
        quotient, rest = b.call("truncdiv", x, y), b.call("rem", x, y)
        if x.dtype == torch.uint8:
            return quotient
        zero = b.constant(0, x.dtype)
        inexact = b.call("ne", rest, zero, dtype=torch.bool)
        opposite = b.call(
            "ne", b.call("lt", rest, zero, dtype=torch.bool), b.call("lt", y, zero, dtype=torch.bool), dtype=torch.bool
        )
        return b.where(b.both(inexact, opposite), b.call("sub", quotient, b.constant(1, x.dtype)), quotient)
    zero = b.constant(0.0, x.dtype)
    rest = b.call("fmod", x, y)
    quotient = b.call("div", b.call("sub", x, rest), y)
    inexact = b.call("ne", rest, zero, dtype=torch.bool)
    opposite = b.call(
        "ne", b.call("lt", rest, zero, dtype=torch.bool), b.call("lt", y, zero, dtype=torch.bool), dtype=torch.bool
    )
    quotient = b.where(b.both(inexact, opposite), b.call("sub", quotient, b.constant(1.0, x.dtype)), quotient)
    floored = b.call("floor", quotient)
    over = b.call("gt", b.call("sub", quotient, floored), b.constant(0.5, x.dtype), dtype=torch.bool)
    floored = b.where(over, b.call("add", floored, b.constant(1.0, x.dtype)), floored)
    return b.where(b.call("eq", y, zero, dtype=torch.bool), b.call("div", x, y), floored)


@lowers(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(low: Lowering, a: Any, other: Any) -> Tensor:
    return elementwise(low, (a, other), _floor_division)


@lowers(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(low: Lowering, a: Any, other: Any) -> Tensor:
    def compute(b: Builder, x: Op, y: Op) -> Op:
        rest = b.call("fmod" if x.dtype.is_floating_point else "rem", x, y)
        if x.dtype == torch.uint8:
            return rest
        zero = b.constant(0, x.dtype)
        inexact = b.call("ne", rest, zero, dtype=torch.bool)
        opposite = b.call(
            "ne", b.call("lt", rest, zero, dtype=torch.bool), b.call("lt", y, zero, dtype=torch.bool), dtype=torch.bool
        )
        return b.where(b.both(inexact, opposite), b.call("add", rest, y), rest)

    return elementwise(low, (a, other), compute)


@lowers(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(low: Lowering, a: Any, other: Any) -> Tensor:
    return elementwise(low, (a, other), lambda b, x, y: b.call("fmod" if x.dtype.is_floating_point else "rem", x, y))


lowers(aten.maximum.default)(lambda low, a, other: elementwise(low, (a, other), _named("maximum")))
lowers(aten.minimum.default)(lambda low, a, other: elementwise(low, (a, other), _named("minimum")))


lowers(aten.atan2.default)(lambda low, a, other: elementwise(low, (a, other), _named("atan2"), INT_TO_FLOAT))
lowers(aten.hypot.default)(lambda low, a, other: elementwise(low, (a, other), _named("hypot")))


@lowers(aten.pow.Tensor_Tensor)
def pow_tensor(low: Lowering, a: Tensor, exponent: Tensor) -> Tensor:
    is_float = promoted((a, exponent))[1].is_floating_point
    return elementwise(low, (a, exponent), _named("pow") if is_float else _power_of_whole)


@lowers(aten.pow.Tensor_Scalar)
def pow_scalar(low: Lowering, a: Tensor, exponent: Any) -> Tensor:
    if is_fraction(exponent) and promoted((a, exponent))[1].is_floating_point:
        return elementwise(low, (a, exponent), _named("pow"))
    if not isinstance(exponent, (int, float)) or isinstance(exponent, bool):
        raise NotLowered("a power with an unusual exponent is computed by ATen")
    is_float = promoted((a, exponent))[1].is_floating_point
    is_small = float(exponent).is_integer() and abs(exponent) <= 16
    if (is_small and is_float) or (isinstance(exponent, int) and exponent >= 0 and not is_float):
        return elementwise(low, (a, exponent), lambda b, v, _: _whole_power(b, v, int(exponent)))
    if exponent == 0.5:
        return elementwise(low, (a, exponent), lambda b, v, _: b.call("sqrt", v))
    if exponent == -0.5:
        return elementwise(low, (a, exponent), lambda b, v, _: b.call("rsqrt", v))
    if not is_float:
        raise NotLowered("whole numbers have no powers below zero, which ATen says")
    return elementwise(low, (a, exponent), _named("pow"))


def _whole_power(b: Builder, v: Op, exponent: int) -> Op:
    if exponent < 0:
        return b.call("div", b.constant(1.0, v.dtype), _whole_power(b, v, -exponent))
    if exponent == 0:
        return b.constant(1, v.dtype)
    half = _whole_power(b, v, exponent // 2) if exponent > 1 else None
    squared = v if half is None else b.call("mul", half, half)
    return squared if exponent % 2 == 0 or half is None else b.call("mul", squared, v)


@lowers(aten.pow.Scalar)
def pow_of_scalar(low: Lowering, base: Any, exponent: Tensor) -> Tensor:
    is_float = promoted((base, exponent))[1].is_floating_point
    return elementwise(low, (base, exponent), _named("pow") if is_float else _power_of_whole)


def _power_of_whole(b: Builder, base: Op, exponent: Op) -> Op:
    """By squaring, a bit of the exponent at a time; products wrap around as eager's do. Below zero only 1 and -1 have a power that is not 0."""
    dtype = base.dtype
    zero, one = b.constant(0, dtype), b.constant(1, dtype)

    def bit(k: int) -> Op:
        return b.call("ne", b.call("and", exponent, b.constant(1 << k, dtype)), zero, dtype=torch.bool)

    total, square = one, base
    for k in range(torch.iinfo(dtype).bits - dtype.is_signed):
        square = b.call("mul", square, square) if k else square
        total = b.where(bit(k), b.call("mul", total, square), total)
    if not dtype.is_signed:
        return total
    minus = b.constant(-1, dtype)
    of_minus = b.where(b.call("eq", base, minus, dtype=torch.bool), b.where(bit(0), minus, one), zero)
    inverse = b.where(b.call("eq", base, one, dtype=torch.bool), one, of_minus)
    return b.where(b.call("lt", exponent, zero, dtype=torch.bool), inverse, total)


def _comparison(name: str) -> None:
    packet = getattr(aten, name)

    @lowers(packet.Tensor, packet.Scalar)
    def lowered(low: Lowering, a: Any, other: Any) -> Tensor:
        return elementwise(low, (a, other), lambda b, x, y: b.call(name, x, y, dtype=torch.bool), ALWAYS_BOOL)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _comparison(_name)


def _truth(b: Builder, v: Op) -> Op:
    return v if v.dtype == torch.bool else b.call("ne", v, b.constant(0, v.dtype), dtype=torch.bool)


def _logical(name: str, op: str) -> None:
    @lowers(getattr(aten, name).default)
    def lowered(low: Lowering, a: Any, other: Any) -> Tensor:
        return elementwise(
            low, (a, other), lambda b, x, y: b.call(op, _truth(b, x), _truth(b, y), dtype=torch.bool), ALWAYS_BOOL
        )


for _name, _op in (("logical_and", "and"), ("logical_or", "or"), ("logical_xor", "xor")):
    _logical(_name, _op)


@lowers(aten.logical_not.default)
def logical_not(low: Lowering, a: Tensor) -> Tensor:
    return elementwise(
        low,
        (a,),
        lambda b, v: (
            b.call("eq", v, b.constant(0, v.dtype), dtype=torch.bool) if v.dtype != torch.bool else b.call("not", v)
        ),
        ALWAYS_BOOL,
    )


def _bitwise(name: str, op: str) -> None:
    packet = getattr(aten, name)

    @lowers(packet.Tensor, packet.Scalar, packet.Scalar_Tensor)
    def lowered(low: Lowering, a: Any, other: Any) -> Tensor:
        return elementwise(low, (a, other), _named(op))


for _name, _op in (("bitwise_and", "and"), ("bitwise_or", "or"), ("bitwise_xor", "xor")):
    _bitwise(_name, _op)
lowers(aten.bitwise_not.default)(lambda low, a: elementwise(low, (a,), _named("not")))


@lowers(aten.isnan.default)
def isnan(low: Lowering, a: Tensor) -> Tensor:
    return elementwise(low, (a,), lambda b, v: b.call("ne", v, v, dtype=torch.bool), ALWAYS_BOOL)


@lowers(aten.isinf.default)
def isinf(low: Lowering, a: Tensor) -> Tensor:
    def compute(b: Builder, v: Op) -> Op:
        if not v.dtype.is_floating_point:
            return b.constant(False, torch.bool)
        return b.call("eq", b.call("abs", v), b.constant(math.inf, v.dtype), dtype=torch.bool)

    held = a.dtype if not a.dtype.is_floating_point else promoted((a,))[0]
    return elementwise(low, (a,), compute, dtypes=(held, torch.bool))


@lowers(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(low: Lowering, condition: Tensor, a: Any, other: Any) -> Tensor:
    result = result_value(low).dtype
    check_loopable(condition, a, other)
    shape = broadcast_shape((condition, a, other))
    test, then, otherwise = (
        element(condition, torch.bool, shape),
        element(a, result, shape),
        element(other, result, shape),
    )
    return low.pointwise(
        shape, result, lambda b, index: b.where(_truth(b, test(b, index)), then(b, index), otherwise(b, index))
    )


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(low: Lowering, a: Tensor, mask: Tensor, value: Any) -> Tensor:
    return where(low, mask, value, a)  # type: ignore[no-any-return]


@lowers(aten.clamp.default, aten.clamp.Tensor)
def clamp(low: Lowering, a: Tensor, min: Any = None, max: Any = None) -> Tensor:
    given = [v for v in (min, max) if v is not None]

    def compute(b: Builder, v: Op, *limits: Op) -> Op:
        rest = list(limits)
        if min is not None:
            v = b.call("maximum", v, rest.pop(0))
        return b.call("minimum", v, rest.pop(0)) if max is not None else v

    return elementwise(low, (a, *given), compute)


lowers(aten.clamp_min.default, aten.clamp_min.Tensor)(clamp)
lowers(aten.clamp_max.default, aten.clamp_max.Tensor)(lambda low, a, limit: clamp(low, a, None, limit))


@lowers(
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh_copy.default,
    aten.lift_fresh.default,
    aten.contiguous.default,
)
def clone(low: Lowering, a: Tensor, memory_format: Any = None) -> Tensor:
    check_loopable(a)
    return low.pointwise(a.shape, a.dtype, a.at)


@lowers(aten._to_copy.default, prims.convert_element_type.default)
def to_copy(low: Lowering, a: Tensor, dtype: torch.dtype | None = None, **other: Any) -> Tensor:
    if other.get("layout") not in (None, torch.strided):
        raise NotLowered("other layouts are made by ATen")
    dtype = dtype or a.dtype
    check_loopable(a, result_value(low))
    if dtype == torch.bool:
        return low.pointwise(a.shape, dtype, lambda b, index: _truth(b, a.at(b, index)))
    return low.pointwise(
        a.shape, dtype, lambda b, index: b.round(a.at(b, index), dtype) if dtype != a.dtype else a.at(b, index)
    )


@lowers(aten.copy.default)
def copy(low: Lowering, a: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    check_loopable(a, source)
    value = element(source, a.dtype, a.shape)
    return low.pointwise(a.shape, a.dtype, value)


@lowers(aten.relu.default)
def relu(low: Lowering, a: Tensor) -> Tensor:
    return elementwise(low, (a,), lambda b, v: b.call("maximum", v, b.constant(0, v.dtype)))


@lowers(aten.gelu.default)
def gelu(low: Lowering, a: Tensor, approximate: str = "none") -> Tensor:
    def exact(b: Builder, v: Op) -> Op:
        erf = b.call("erf", b.call("mul", v, b.constant(math.sqrt(0.5), v.dtype)))
        return b.call("mul", b.call("mul", v, b.constant(0.5, v.dtype)), b.call("add", erf, b.constant(1.0, v.dtype)))

    def by_tanh(b: Builder, v: Op) -> Op:
        cube = b.call("mul", b.call("mul", v, v), v)
        inner = b.call("add", v, b.call("mul", cube, b.constant(0.044715, v.dtype)))
        tanh = b.call("tanh", b.call("mul", inner, b.constant(math.sqrt(2.0 / math.pi), v.dtype)))
        return b.call("mul", b.call("mul", v, b.constant(0.5, v.dtype)), b.call("add", tanh, b.constant(1.0, v.dtype)))

    return elementwise(low, (a,), by_tanh if approximate == "tanh" else exact)


@lowers(aten.silu.default)
def silu(low: Lowering, a: Tensor) -> Tensor:
    return elementwise(low, (a,), lambda b, v: b.call("mul", v, b.call("sigmoid", v)))


@lowers(aten.leaky_relu.default)
def leaky_relu(low: Lowering, a: Tensor, negative_slope: float = 0.01) -> Tensor:
    def compute(b: Builder, v: Op) -> Op:
        positive = b.call("gt", v, b.constant(0, v.dtype), dtype=torch.bool)
        return b.where(positive, v, b.call("mul", v, b.constant(negative_slope, v.dtype)))

    return elementwise(low, (a,), compute)


@lowers(aten.addcmul.default)
def addcmul(low: Lowering, a: Tensor, left: Tensor, right: Tensor, value: Any = 1) -> Tensor:
    def compute(b: Builder, base: Op, x: Op, y: Op) -> Op:
        product = b.call("mul", x, y)
        return b.call("add", base, product if value == 1 else b.call("mul", product, b.constant(value, product.dtype)))

    return elementwise(low, (a, left, right), compute)


@lowers(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(low: Lowering, a: Tensor, end: Tensor, weight: Any) -> Tensor:
    """From the nearer end, as eager does, so that both ends are met exactly."""

    def compute(b: Builder, start: Op, end: Op, *weights: Op) -> Op:
        share = weights[0] if weights else b.constant(weight, start.dtype)
        way = b.call("sub", end, start)
        from_start = b.call("add", start, b.call("mul", share, way))
        rest = b.call("sub", b.constant(1.0, start.dtype), share)
        from_end = b.call("sub", end, b.call("mul", way, rest))
        if isinstance(weight, (int, float)):
            return from_start if abs(weight) < 0.5 else from_end
        is_near = b.call("lt", b.call("abs", share), b.constant(0.5, start.dtype), dtype=torch.bool)
        return b.where(is_near, from_start, from_end)

    return elementwise(low, (a, end, weight) if isinstance(weight, Tensor) else (a, end), compute)
