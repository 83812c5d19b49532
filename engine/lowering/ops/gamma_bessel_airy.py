"""Incomplete gamma, modified Bessel K and Airy functions, by series and integrals.

They are computed in float64 where they need it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.ops import LoopIROp
from engine.lowering.context import LoweredTensor, LoweringContext
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.ops.pointwise import elementwise
from engine.lowering.ops.special_functions import polynomial
from engine.lowering.promotion import INT_TO_FLOAT, promote_dtypes
from engine.lowering.registry import register_lowering

aten = torch.ops.aten
F64 = torch.float64
EULER_GAMMA = 0.57721566490153286
BESSEL_SERIES_LIMIT = 1.0
"""Largest argument for which the Bessel series is accurate."""


def _bessel_k(order: int, *, is_scaled: bool) -> Callable[[LoopBuilder, LoopIROp], LoopIROp]:
    """Build a modified Bessel function K; ``is_scaled``: times ``exp(x)``."""

    def compute(b: LoopBuilder, x: LoopIROp) -> LoopIROp:
        uses_series = x < BESSEL_SERIES_LIMIT
        series_x, integral_x = b.where(uses_series, x, 1.0), b.where(uses_series, 1.0, x)
        logarithm = b.call("log", series_x * 0.5) + EULER_GAMMA
        series = b.call("bessel_k_near", series_x, b.call(f"i{order}", series_x), logarithm, float(order))
        integral = b.call("bessel_k_far", integral_x, float(order))
        if is_scaled:
            series = series * b.call("exp", series_x)
        else:
            integral = integral * b.call("exp", -integral_x)
        value = b.where(uses_series, series, b.where(x.equals(math.inf), 0.0, integral))
        value = b.where(x.equals(0.0), math.inf, value)
        return b.where(x < 0.0, math.nan, value)

    return compute


def _lowers_bessel(operator: Any, order: int, *, is_scaled: bool) -> None:
    compute = _bessel_k(order, is_scaled=is_scaled)
    register_lowering(operator)(lambda low, a: elementwise(low, (a,), compute, INT_TO_FLOAT))


_lowers_bessel(aten.special_modified_bessel_k0.default, 0, is_scaled=False)
_lowers_bessel(aten.special_modified_bessel_k1.default, 1, is_scaled=False)
_lowers_bessel(aten.special_scaled_modified_bessel_k0.default, 0, is_scaled=True)
_lowers_bessel(aten.special_scaled_modified_bessel_k1.default, 1, is_scaled=True)


def _register_in_float64(operator: Any, compute: Callable[..., LoopIROp]) -> None:
    """Register a lowering that computes narrower operands elementwise in float64.

    It raises ``NotLowered`` for float64 operands, which leave no room for rounding errors.
    """

    def narrowed(b: LoopBuilder, *operands: LoopIROp) -> LoopIROp:
        return b.cast(compute(b, *(b.cast(x, F64) for x in operands)), operands[0].dtype)

    @register_lowering(operator)
    def lowered(low: LoweringContext, *args: LoweredTensor) -> LoweredTensor:
        if promote_dtypes(args, INT_TO_FLOAT)[1] == F64:
            raise NotLowered(
                LoweringFallback.DOUBLE_PRECISION, "it has no lowering for float64: its series would need a wider dtype"
            )
        return elementwise(low, args, narrowed, INT_TO_FLOAT)


ASYMPTOTIC_LIMIT = 1e4
"""From this first argument on, ``_incomplete_gamma_asymptotic`` is accurate to 32 bits.

Uniform expansion by Temme (1979), around the normal distribution.
"""


def _incomplete_gamma(*, is_upper: bool) -> Callable[[LoopBuilder, LoopIROp, LoopIROp], LoopIROp]:
    """Build the regularized incomplete gamma function: lower, or upper if ``is_upper``."""

    def compute(b: LoopBuilder, a: LoopIROp, x: LoopIROp) -> LoopIROp:
        is_regular = (a > 0.0) & (a < ASYMPTOTIC_LIMIT)
        is_regular = is_regular & ((x > 0.0) & (x < math.inf))
        regular_a, regular_x = b.where(is_regular, a, 1.0), b.where(is_regular, x, 1.0)
        log_weight = regular_a * b.call("log", regular_x) - regular_x - b.call("lgamma", regular_a)
        weight = b.call("exp", log_weight)
        uses_series = regular_x < regular_a + 1.0
        lower = weight * b.call("lower_gamma", regular_a, b.where(uses_series, regular_x, 1.0))
        fraction_x = b.where(uses_series, regular_a + 1.0, regular_x)
        upper = weight * b.call("upper_gamma", regular_a, fraction_x)
        value = b.where(uses_series, 1.0 - lower, upper) if is_upper else b.where(uses_series, lower, 1.0 - upper)
        nan = b.constant(math.nan, F64)
        is_asymptotic = a >= ASYMPTOTIC_LIMIT
        value = b.where(is_asymptotic, _incomplete_gamma_asymptotic(b, a, x, is_upper=is_upper), value)
        at_zero, at_infinity = (1.0, 0.0) if is_upper else (0.0, 1.0)
        value = b.where(x.equals(0.0), at_zero, value)
        value = b.where(a.equals(0.0), b.where(x.equals(0.0), nan, at_infinity), value)
        value = b.where(x.equals(math.inf), at_infinity, value)
        value = b.where(a.equals(math.inf), b.where(x.equals(math.inf), nan, at_zero), value)
        is_outside = (a < 0.0) | (x < 0.0)
        has_nan = a.is_nan() | x.is_nan()
        return b.where(is_outside | has_nan, nan, value)

    return compute


def _incomplete_gamma_asymptotic(b: LoopBuilder, a: LoopIROp, x: LoopIROp, *, is_upper: bool) -> LoopIROp:
    """Compute the leading terms of the uniform expansion for a large first argument."""
    off = (x - a) / a
    height = off - b.call("log1p", off)
    eta = b.call("copysign", b.call("sqrt", height * 2.0), off)
    tail = b.call("erfc", eta * b.call("sqrt", a * 0.5))
    if not is_upper:
        tail = 2.0 - tail
    is_flat = b.call("abs", off) < 1e-3
    steep = b.where(is_flat, 1.0, off)
    slope = b.where(is_flat, 1.0, eta)
    exact = 1.0 / steep - 1.0 / slope
    # -1/3 + eta/12 - 2 eta**2/135
    series = 1.0 / 12.0 - eta * (2.0 / 135.0)
    series = eta * series - (1.0 / 3.0)
    bell = b.call("exp", -(a * height))
    part = bell / b.call("sqrt", a * (2.0 * math.pi))
    correction = part * b.where(is_flat, series, exact)
    half = tail * 0.5
    return half + correction if is_upper else half - correction


for _operator, _is_upper in ((aten.igamma.default, False), (aten.igammac.default, True)):
    _register_in_float64(_operator, _incomplete_gamma(is_upper=_is_upper))


AIRY_NEAR = 1.5
AIRY_FAR = -8.0
"""Bounds of the Maclaurin series of the Airy function.

Above them a Bessel function is used, below them the asymptotic expansion.
"""
AIRY_AT_ZERO, AIRY_SLOPE_AT_ZERO = 0.355028053887817239, -0.258819403792806798


def _airy_asymptotic_coefficients() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the coefficients of even and odd powers of ``1 / zeta``, the highest first.

    Abramowitz and Stegun, 10.4.58.
    """
    coefficients = [1.0]
    for k in range(1, 12):
        coefficients.append(coefficients[-1] * (6 * k - 5) * (6 * k - 3) * (6 * k - 1) / (216 * k * (2 * k - 1)))
    even = [(-1) ** k * c for k, c in enumerate(coefficients[0::2])]
    odd = [(-1) ** k * c for k, c in enumerate(coefficients[1::2])]
    return tuple(reversed(even)), tuple(reversed(odd))


def _airy(b: LoopBuilder, x: LoopIROp) -> LoopIROp:
    """Compute Ai: its series near 0, a Bessel function above, an asymptotic expansion below."""

    def zeta_of(size: LoopIROp) -> LoopIROp:
        return size * b.call("sqrt", size) * (2.0 / 3.0)

    is_above = x > AIRY_NEAR
    is_below = x < AIRY_FAR
    near_x = b.where(is_above | is_below, 0.0, x)
    near = b.call("airy_near", near_x, AIRY_AT_ZERO, AIRY_SLOPE_AT_ZERO)
    above_x = b.where(is_above, x, AIRY_NEAR)
    zeta = zeta_of(above_x)
    bessel = b.call("bessel_k_far", zeta, 1.0 / 3.0) * b.call("exp", -zeta)
    above = b.call("sqrt", above_x * (1.0 / 3.0)) * bessel * (1.0 / math.pi)
    below_x = b.where(is_below, -x, -AIRY_FAR)
    zeta = zeta_of(below_x)
    inverse = 1.0 / zeta
    square = inverse * inverse
    even, odd = _airy_asymptotic_coefficients()
    phase = zeta - (math.pi / 4.0)
    oscillation = b.call("cos", phase) * polynomial(b, square, even)
    oscillation = oscillation + b.call("sin", phase) * polynomial(b, square, odd) * inverse
    below = oscillation / b.call("sqrt", b.call("sqrt", below_x) * math.pi)
    value = b.where(is_above, above, b.where(is_below, below, near))
    return b.where(b.call("abs", x).equals(math.inf), math.nan, value)


_register_in_float64(aten.special_airy_ai.default, _airy)
