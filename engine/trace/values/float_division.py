"""``//`` and ``%`` of floats that stand for themselves. Division by a power of two is exact, so algebra finds what Python finds; not by other numbers."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

import torch

from engine.trace import operations
from engine.trace.graph_builder import emit
from engine.trace.values.base import Const, Value, force
from engine.trace.values.symbolic import SymValue

if TYPE_CHECKING:
    from engine.trace.state import Tracer

_LEAST = 2.0**-900
"""Half of a float that is much smaller is not exact."""
_WHOLE = 2.0**53
"""Up to here each whole number is a float, and fits an int of torch's."""
_NEAR_ONE = 2.0**50
_POWER = 0.5
"""The mantissa of all powers of two."""


def by_power_of_two(tx: Tracer, symbol: str, left: Value, right: Value) -> Value | None:
    """``left // right`` or ``left % right`` of a float that is a symbol and a positive power of two; None for anything else.

    Which side of zero the float is on, and that it is neither tiny nor huge, is taken for granted.
    """
    sign = symbol.rstrip("=")
    if sign not in ("//", "%") or not isinstance(left, SymValue) or left.symbol is None or left.type() is not float:
        return None
    if not isinstance(right, Const) or type(right.value) not in (int, float):
        return None
    by = right.value
    if not 1 / _NEAR_ONE <= by <= _NEAR_ONE or math.frexp(by)[0] != _POWER:
        return None
    low, high = _LEAST, _WHOLE * by
    bounds = ((">=", low), ("<=", high)) if left.sym.node.hint > 0 else (("<=", -low), (">=", -high))
    if not all(operations.compare(tx, order, left, Const(bound)).truth(tx) for order, bound in bounds):
        return None
    quotient = left if by == 1 else emit(tx, "call_function", operator.truediv, [left, Const(float(by))])
    whole = emit(tx, "call_function", torch.sym_float, [emit(tx, "call_function", math.floor, [force(tx, quotient)])])
    if sign == "//":
        return whole
    multiple = whole if by == 1 else emit(tx, "call_function", operator.mul, [whole, Const(float(by))])
    return emit(tx, "call_function", operator.sub, [left, multiple])
