"""``//`` and ``%`` of symbolic input floats by powers of two.

Such a division is exact, so sympy and Python agree. Other divisors round.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.operators import arithmetic
from engine.trace.variables.base import ConstantVariable, Variable, realize

_MIN_FLOAT = 2.0**-900
"""Smallest supported magnitude: halves of much smaller floats are not exact."""
_MAX_EXACT_INT = 2.0**53
"""Largest magnitude up to which every integer is a float and fits in int64."""
_MAX_DIVISOR = 2.0**50
_POWER_OF_TWO_MANTISSA = 0.5
"""Mantissa that ``math.frexp`` returns for every power of two."""


def floor_divide_by_power_of_two(tx: Tracer, sign: str, left: Any, right: Variable) -> Variable | None:
    """Trace ``left // right`` or ``%`` for a symbolic float and a positive power of two.

    Guards specialize the sign of the float and bound its magnitude. None for other operands.
    """
    if sign not in ("//", "%") or not left.is_symbolic or left.symbol is None or left.python_type() is not float:
        return None
    if not right.is_constant or right.python_type() not in (int, float):
        return None
    by = right.constant
    if not 1 / _MAX_DIVISOR <= by <= _MAX_DIVISOR or math.frexp(by)[0] != _POWER_OF_TWO_MANTISSA:
        return None
    low, high = _MIN_FLOAT, _MAX_EXACT_INT * by
    bounds = ((">=", low), ("<=", high)) if left.sym.node.hint > 0 else (("<=", -low), (">=", -high))
    if not all(
        arithmetic.compare_op(tx, order, left, ConstantVariable(bound)).is_truthy(tx) for order, bound in bounds
    ):
        return None
    quotient = (
        left if by == 1 else emit_node(tx, "call_function", operator.truediv, [left, ConstantVariable(float(by))])
    )
    whole = emit_node(
        tx, "call_function", torch.sym_float, [emit_node(tx, "call_function", math.floor, [realize(tx, quotient)])]
    )
    if sign == "//":
        return whole
    multiple = whole if by == 1 else emit_node(tx, "call_function", operator.mul, [whole, ConstantVariable(float(by))])
    return emit_node(tx, "call_function", operator.sub, [left, multiple])
