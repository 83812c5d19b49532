"""Functions of mathematical physics that no target has, by series that are accurate to the last few bits."""

from __future__ import annotations

import math

import torch

from engine.ir.loops import Builder, Op
from engine.lowering.ops.pointwise import elementwise
from engine.lowering.table import INT_TO_FLOAT, Lowering, NotLowered, Tensor, lowers

aten = torch.ops.aten

DIGAMMA = (
    8.33333333333333333333e-2,
    -2.10927960927960927961e-2,
    7.57575757575757575758e-3,
    -4.16666666666666666667e-3,
    3.96825396825396825397e-3,
    -8.33333333333333333333e-3,
    8.33333333333333333333e-2,
)
"""Bernoulli numbers over twice their index, the twelfth first: the asymptotic series (Abramowitz and Stegun, 6.3.18)."""
STEPS = 10
"""How far arguments are moved up until the asymptotic series holds."""


def _polynomial(b: Builder, x: Op, coefficients: tuple[float, ...]) -> Op:
    total = b.constant(coefficients[0], x.dtype)
    for coefficient in coefficients[1:]:
        total = b.call("add", b.call("mul", total, x), b.constant(coefficient, x.dtype))
    return total


def _moved(b: Builder, x: Op, inverse_power: int) -> tuple[Op, Op]:
    """``(x + n, sum of 1 / (x + k) ** power)`` for as many steps as leave ``x + n`` at least ``STEPS``."""
    limit, one = b.constant(float(STEPS), x.dtype), b.constant(1.0, x.dtype)
    total = b.constant(0.0, x.dtype)
    for _ in range(STEPS):
        is_small = b.call("lt", x, limit, dtype=torch.bool)
        part = b.call("div", one, x if inverse_power == 1 else b.call("mul", x, x))
        total = b.where(is_small, b.call("add", total, part), total)
        x = b.where(is_small, b.call("add", x, one), x)
    return x, total


def _tangent_of_turns(b: Builder, x: Op) -> Op:
    """``tan(pi x)``, whole turns taken off first."""
    rest = b.call("sub", x, b.call("trunc", x))
    return b.call("tan", b.call("mul", rest, b.constant(math.pi, x.dtype)))


def _digamma(b: Builder, x: Op) -> Op:
    zero, one = b.constant(0.0, x.dtype), b.constant(1.0, x.dtype)
    is_negative = b.call("lt", x, zero, dtype=torch.bool)
    is_whole = b.call("eq", x, b.call("trunc", x), dtype=torch.bool)
    reflected = b.where(is_negative, b.call("sub", one, x), x)
    large, below = _moved(b, reflected, 1)
    square = b.call("div", one, b.call("mul", large, large))
    series = b.call("mul", square, _polynomial(b, square, DIGAMMA))
    value = b.call("sub", b.call("log", large), b.call("div", b.constant(0.5, x.dtype), large))
    value = b.call("sub", b.call("sub", value, series), below)
    turned = b.call("sub", value, b.call("div", b.constant(math.pi, x.dtype), _tangent_of_turns(b, x)))
    value = b.where(is_negative, turned, value)
    value = b.where(b.both(is_negative, is_whole), b.constant(math.nan, x.dtype), value)
    is_zero = b.call("eq", x, zero, dtype=torch.bool)
    pole = b.call("copysign", b.constant(math.inf, x.dtype), b.call("neg", x))
    return b.where(is_zero, pole, value)


def _trigamma(b: Builder, x: Op) -> Op:
    one = b.constant(1.0, x.dtype)
    is_low = b.call("lt", x, b.constant(0.5, x.dtype), dtype=torch.bool)
    sine = b.call("sin", b.call("mul", x, b.constant(math.pi, x.dtype)))
    pole = b.call("div", b.constant(math.pi**2, x.dtype), b.call("mul", sine, sine))
    large, total = _moved(b, b.where(is_low, b.call("sub", one, x), x), 2)
    inverse = b.call("div", one, large)
    square = b.call("mul", inverse, inverse)
    # 1/x + 1/2x^2 + B2/x^3 + B4/x^5 + ... (Abramowitz and Stegun, 6.4.12)
    series = _polynomial(b, square, (7 / 6, -691 / 2730, 5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6, 1.0))
    half = b.call("mul", b.call("mul", square, b.constant(0.5, x.dtype)), one)
    value = b.call("add", total, b.call("add", b.call("mul", inverse, series), half))
    return b.where(is_low, b.call("sub", pole, value), value)


@lowers(aten.digamma.default)
def digamma(low: Lowering, a: Tensor) -> Tensor:
    return elementwise(low, (a,), _digamma, INT_TO_FLOAT)


@lowers(aten.polygamma.default)
def polygamma(low: Lowering, n: int, a: Tensor) -> Tensor:
    if n > 1:
        raise NotLowered("derivatives of the digamma function beyond the first are computed by ATen")
    return elementwise(low, (a,), _trigamma if n else _digamma, INT_TO_FLOAT)


@lowers(aten.special_spherical_bessel_j0.default)
def spherical_bessel_j0(low: Lowering, a: Tensor) -> Tensor:
    """``sin(x) / x``, near nothing its Taylor series."""
    taylor = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(6, -1, -1))

    def compute(b: Builder, x: Op) -> Op:
        size = b.call("abs", x)
        is_near = b.call("lt", size, b.constant(0.5, x.dtype), dtype=torch.bool)
        value = b.where(is_near, _polynomial(b, b.call("mul", x, x), taylor), b.call("div", b.call("sin", x), x))
        is_infinite = b.call("eq", size, b.constant(math.inf, x.dtype), dtype=torch.bool)
        return b.where(is_infinite, b.constant(0.0, x.dtype), value)

    return elementwise(low, (a,), compute, INT_TO_FLOAT)


@lowers(aten.special_modified_bessel_i0.default)
def modified_bessel_i0(low: Lowering, a: Tensor) -> Tensor:
    return elementwise(low, (a,), lambda b, x: b.call("i0", x), INT_TO_FLOAT)


@lowers(aten.special_modified_bessel_i1.default)
def modified_bessel_i1(low: Lowering, a: Tensor) -> Tensor:
    return elementwise(low, (a,), lambda b, x: b.call("i1", x), INT_TO_FLOAT)


@lowers(aten.angle.default)
def angle(low: Lowering, a: Tensor) -> Tensor:
    """Of real numbers: half a turn below zero."""

    def compute(b: Builder, x: Op) -> Op:
        is_negative = b.call("lt", x, b.constant(0.0, x.dtype), dtype=torch.bool)
        turned = b.where(is_negative, b.constant(math.pi, x.dtype), b.constant(0.0, x.dtype))
        return b.where(b.call("ne", x, x, dtype=torch.bool), x, turned)

    return elementwise(low, (a,), compute, INT_TO_FLOAT)
