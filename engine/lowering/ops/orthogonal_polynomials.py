"""Orthogonal polynomials by three-term recurrences; each element has its own degree."""

from __future__ import annotations

import math
from typing import Any

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.ops import LoopIROp
from engine.lowering.ops.pointwise import register_elementwise
from engine.lowering.promotion import INT_TO_FLOAT

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
