"""Special functions that targets lack, by series, and orthogonal polynomials.

Series are accurate to the last few bits.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.ops import LoopIROp, compute_dtype
from engine.ir.loop_ir.tensor_def import Coordinates
from engine.lowering.context import LoweredTensor, LoweringContext
from engine.lowering.ops.pointwise import elementwise, register_elementwise
from engine.lowering.promotion import INT_TO_FLOAT
from engine.lowering.registry import register_lowering

aten = torch.ops.aten

DIGAMMA_COEFFICIENTS = (
    8.33333333333333333333e-2,
    -2.10927960927960927961e-2,
    7.57575757575757575758e-3,
    -4.16666666666666666667e-3,
    3.96825396825396825397e-3,
    -8.33333333333333333333e-3,
    8.33333333333333333333e-2,
)
"""Bernoulli numbers B(2n) / 2n, for n from 7 down to 1.

Asymptotic series of digamma (Abramowitz and Stegun, 6.3.18).
"""
ASYMPTOTIC_START = 10
"""Arguments are shifted up to this, from where the asymptotic series is accurate."""


def polynomial(b: LoopBuilder, x: LoopIROp, coefficients: tuple[float, ...]) -> LoopIROp:
    """Return a polynomial of ``x`` by its coefficients, the highest power first."""
    total = b.constant(coefficients[0], x.dtype)
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


def _shift_to_asymptotic(b: LoopBuilder, x: LoopIROp, inverse_power: int) -> tuple[LoopIROp, LoopIROp]:
    """Return ``(x + n, sum of 1 / (x + k) ** power)`` with n minimal, up to the shift bound.

    ``n`` is the number of steps after which ``x + n`` is at least ``ASYMPTOTIC_START``.
    """
    total = b.constant(0.0, x.dtype)
    for _ in range(ASYMPTOTIC_START):
        is_small = x < ASYMPTOTIC_START
        part = 1.0 / (x if inverse_power == 1 else x * x)
        total = b.where(is_small, total + part, total)
        x = b.where(is_small, x + 1.0, x)
    return x, total


def _tan_pi(b: LoopBuilder, x: LoopIROp) -> LoopIROp:
    """Compute ``tan(pi x)``; whole turns are subtracted first."""
    rest = x - b.call("trunc", x)
    return b.call("tan", rest * math.pi)


@register_elementwise(aten.digamma.default, promotion=INT_TO_FLOAT)
def _digamma(b: LoopBuilder, x: LoopIROp) -> LoopIROp:
    is_negative = x < 0.0
    is_whole = x.equals(b.call("trunc", x))
    reflected = b.where(is_negative, 1.0 - x, x)
    large, below = _shift_to_asymptotic(b, reflected, 1)
    square = 1.0 / (large * large)
    series = square * polynomial(b, square, DIGAMMA_COEFFICIENTS)
    value = b.call("log", large) - 0.5 / large
    value = value - series - below
    turned = value - math.pi / _tan_pi(b, x)
    value = b.where(is_negative, turned, value)
    value = b.where(is_negative & is_whole, math.nan, value)
    return b.where(x.equals(0.0), b.call("copysign", math.inf, -x), value)


def _trigamma(b: LoopBuilder, x: LoopIROp) -> LoopIROp:
    is_low = x < 0.5
    sine = b.call("sin", x * math.pi)
    pole = math.pi**2 / (sine * sine)
    large, total = _shift_to_asymptotic(b, b.where(is_low, 1.0 - x, x), 2)
    inverse = 1.0 / large
    square = inverse * inverse
    # 1/x + 1/2x^2 + B2/x^3 + B4/x^5 + ... (Abramowitz and Stegun, 6.4.12)
    series = polynomial(b, square, (7 / 6, -691 / 2730, 5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6, 1.0))
    value = total + (inverse * series + square * 0.5)
    return b.where(is_low, pole - value, value)


@register_elementwise(
    aten.special_zeta.default, aten.special_zeta.self_scalar, aten.special_zeta.other_scalar, promotion=INT_TO_FLOAT
)
def _zeta(b: LoopBuilder, s: LoopIROp, q: LoopIROp) -> LoopIROp:
    """Compute the Hurwitz zeta function.

    Its sum over ``q + k`` for all integers k is periodic in ``q``. This leads from arguments below zero to above it.
    """
    floor = b.call("floor", q)
    is_below, is_whole = q <= 0.0, q.equals(floor)
    rest = q - floor
    above = b.call("hurwitz", s, b.where(is_below, b.where(is_whole, 1.0, rest), q))
    left = b.where(is_below, b.where(is_whole, 1.0, 1.0 - rest), 1.0)
    far = b.where(is_below, 1.0 - q, 1.0)
    other = b.call("hurwitz", s, left) - b.call("hurwitz", s, far)
    half = s * 0.5
    is_even = half.equals(b.call("floor", half))
    reflected = above + b.where(is_even, other, -other)
    is_sum = s.equals(b.call("floor", s))
    value = b.where(is_below, b.where(is_whole, math.inf, b.where(is_sum, reflected, math.nan)), above)
    value = b.where(s.equals(1.0), math.inf, value)
    return b.where(s < 1.0, math.nan, value)


@register_lowering(aten.polygamma.default)
def polygamma(low: LoweringContext, n: int, a: LoweredTensor) -> LoweredTensor:
    if n > 1:
        factor = math.factorial(n) * (1.0 if n % 2 else -1.0)

        def derivative(b: LoopBuilder, x: LoopIROp) -> LoopIROp:
            return _zeta(b, b.constant(n + 1.0, x.dtype), x) * factor

        return elementwise(low, (a,), derivative, INT_TO_FLOAT)
    return elementwise(low, (a,), _trigamma if n else _digamma, INT_TO_FLOAT)


HANKEL_START = 30.0
"""Argument from which Hankel's expansion of Bessel functions is accurate to the last bits."""


def _hankel_coefficients(order: int) -> tuple[float, ...]:
    """Return the coefficients of the powers of ``1 / x``, the highest first.

    Abramowitz and Stegun, 9.7.1.
    """
    coefficients = [1.0]
    for k in range(1, 17):
        coefficients.append(-coefficients[-1] * (4.0 * order**2 - (2 * k - 1) ** 2) / (8.0 * k))
    return tuple(reversed(coefficients))


def _scaled_bessel(name: str, order: int) -> Any:
    """Build a modified Bessel function times ``exp(-abs(x))``."""

    def compute(b: LoopBuilder, x: LoopIROp) -> LoopIROp:
        size = b.call("abs", x)
        is_far = size > HANKEL_START
        near = b.where(is_far, HANKEL_START, size)
        value = b.call(name, near) * b.call("exp", -near)
        inverse = 1.0 / b.where(is_far, size, HANKEL_START)
        root = b.call("sqrt", inverse * (0.5 / math.pi))
        value = b.where(is_far, root * polynomial(b, inverse, _hankel_coefficients(order)), value)
        return b.call("copysign", value, x) if order else value

    return compute


register_elementwise(aten.special_i0e.default, promotion=INT_TO_FLOAT)(_scaled_bessel("i0", 0))
register_elementwise(aten.special_i1e.default, promotion=INT_TO_FLOAT)(_scaled_bessel("i1", 1))


@register_elementwise(aten.special_ndtri.default, promotion=INT_TO_FLOAT)
def ndtri(b: LoopBuilder, p: LoopIROp) -> LoopIROp:
    """Compute the inverse of the normal distribution function.

    Newton's method on the logarithm of the tail starts from the tail's asymptotic expansion.
    """
    is_upper = p > 0.5
    tail = b.where(is_upper, 1.0 - p, p)
    log_tail = b.call("log", tail)
    double = log_tail * -2.0
    rest = b.call("log", b.call("maximum", double * (2.0 * math.pi), 1.0))
    x = b.call("sqrt", b.call("maximum", double - rest, 0.0))
    for _ in range(5):
        ratio = b.call("erfcx", x * math.sqrt(0.5))
        own = b.call("log", ratio * 0.5)
        own = own - x * x * 0.5
        step = (own - log_tail) * (ratio * math.sqrt(math.pi / 2.0))
        x = x + step
    x = b.where(tail.equals(0.0), math.inf, x)
    return b.where(is_upper, x, -x)


@register_lowering(aten.frexp.Tensor)
def frexp(low: LoweringContext, a: LoweredTensor) -> tuple[LoweredTensor, LoweredTensor]:
    """Return ``(fraction, exponent)`` of ``fraction * 2 ** exponent``; 0.5 <= fraction < 1."""
    math_dtype = compute_dtype(a.dtype)
    whole, bits, most, scale = (
        (torch.int32, 23, 0xFF, 32) if math_dtype == torch.float32 else (torch.int64, 52, 0x7FF, 64)
    )

    def parts(b: LoopBuilder, i: Coordinates) -> tuple[LoopIROp, LoopIROp]:
        value = a.load(b, i)
        raised = value * 2.0**scale
        is_small = b.call("abs", value) < (2.0 ** (2 - (most + 1) // 2))
        pattern = b.bitcast(b.where(is_small, raised, value), math_dtype, whole)
        power = b.call("and", b.call("shr", pattern, bits), most)
        is_odd = value.equals(0.0)
        is_odd = is_odd | power.equals(most)
        half = b.call("and", pattern, ~(most << bits))
        fraction = b.bitcast(b.call("or", half, (most // 2 - 1) << bits), whole, math_dtype)
        power = power - (most // 2 - 1)
        power = power - b.where(is_small, scale, b.constant(0, whole))
        return b.where(is_odd, value, fraction), b.where(is_odd, 0, power)

    fraction = low.pointwise(a.shape, a.dtype, lambda b, i: parts(b, i)[0])
    return fraction, low.pointwise(a.shape, torch.int32, lambda b, i: b.cast(parts(b, i)[1], torch.int32))


@register_elementwise(aten.special_spherical_bessel_j0.default, promotion=INT_TO_FLOAT)
def spherical_bessel_j0(b: LoopBuilder, x: LoopIROp) -> LoopIROp:
    """Compute ``sin(x) / x``, near zero by its Taylor series."""
    taylor = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(6, -1, -1))
    size = b.call("abs", x)
    is_near = size < 0.5
    value = b.where(is_near, polynomial(b, x * x, taylor), b.call("sin", x) / x)
    is_infinite = size.equals(math.inf)
    return b.where(is_infinite, 0.0, value)


@register_elementwise(aten.angle.default, promotion=INT_TO_FLOAT)
def angle(b: LoopBuilder, x: LoopIROp) -> LoopIROp:
    """Return pi for negative real numbers, else 0; NaN is propagated."""
    is_negative = x < 0.0
    turned = b.where(is_negative, b.constant(math.pi, x.dtype), b.constant(0.0, x.dtype))
    return b.where(x.is_nan(), x, turned)


aten = torch.ops.aten

MAX_HERMITE_DEGREE = {torch.float32: 128, torch.float64: 512}
"""Highest degree of a Hermite polynomial in eager; beyond it the result is NaN."""


def _affine(b: LoopBuilder, x: LoopIROp, slope: float, offset: float) -> LoopIROp:
    """Compute ``slope * x + offset``."""
    value = x if slope == 1.0 else x * slope
    return value if offset == 0.0 else value + offset


def _degree(b: LoopBuilder, n: LoopIROp) -> LoopIROp:
    return b.cast(n, torch.int64)


def _chebyshev(slope: float, offset: float, *, is_shifted: bool) -> Any:
    """Build one of the four kinds of Chebyshev polynomials, given the one of degree 1."""

    def compute(b: LoopBuilder, x: LoopIROp, n: LoopIROp) -> LoopIROp:
        x = _affine(b, x, 2.0, -1.0) if is_shifted else x
        return b.call("chebyshev", x, _affine(b, x, slope, offset), _degree(b, n), dtype=x.dtype)

    return compute


def _hermite(slope: float, step: float) -> Any:
    def compute(b: LoopBuilder, x: LoopIROp, n: LoopIROp) -> LoopIROp:
        degree = _degree(b, n)
        highest = b.constant(MAX_HERMITE_DEGREE[x.dtype], torch.int64)
        is_high = degree > highest
        first = _affine(b, x, slope, 0.0)
        value = b.call("hermite", first, b.constant(step, x.dtype), b.call("minimum", degree, highest), dtype=x.dtype)
        return b.where(is_high, math.nan, value)

    return compute


def _polynomial(name: str, compute: Any) -> None:
    packet = getattr(aten, f"special_{name}")
    register_elementwise(packet.default, packet.x_scalar, packet.n_scalar, promotion=INT_TO_FLOAT)(compute)


for _letter, _slope, _offset in (("t", 1.0, 0.0), ("u", 2.0, 0.0), ("v", 2.0, -1.0), ("w", 2.0, 1.0)):
    _polynomial(f"chebyshev_polynomial_{_letter}", _chebyshev(_slope, _offset, is_shifted=False))
    _polynomial(f"shifted_chebyshev_polynomial_{_letter}", _chebyshev(_slope, _offset, is_shifted=True))
_polynomial("hermite_polynomial_h", _hermite(2.0, 2.0))
_polynomial("hermite_polynomial_he", _hermite(1.0, 1.0))
_polynomial("legendre_polynomial_p", lambda b, x, n: b.call("legendre", x, _degree(b, n), dtype=x.dtype))
_polynomial("laguerre_polynomial_l", lambda b, x, n: b.call("laguerre", x, _degree(b, n), dtype=x.dtype))
