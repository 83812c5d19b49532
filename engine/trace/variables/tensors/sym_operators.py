"""Python operators on symbolic numbers.

Where sympy and Python disagree, or ``ShapeEnv`` does not support an operator, the symbols are specialized.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from engine.ir.introspection.python_operators import BINARY, UNARY, Operator
from engine.ir.introspection.symbols import has_unbacked_symbols
from engine.trace.annotations import Tracer
from engine.trace.computed_conditions import compute_before_graph
from engine.trace.emit_node import emit_node
from engine.trace.operators.operand import OperatorResult
from engine.trace.symbols.unbacked_symints import is_unbacked_float
from engine.trace.variables.base import ConstantVariable, Variable, realize


def operate(tx: Tracer, op: Operator, left: Variable, right: Variable) -> OperatorResult:
    """Trace a binary operator on a symbol and a symbol or constant."""
    if (operands := _coerce(tx, left, right)) is None:
        return NotImplemented
    supported = _supported_symfloats(tx, op, *operands)
    if supported is None:
        computed = compute_before_graph(tx, op.function, [v.as_node_arg(tx)[0] for v in operands])
        if computed is not None:
            return realize(tx, tx.wrap(*computed))
        supported = _specialize(tx, *operands)
    return _emit_or_fold(tx, op, *_specialize_symbools(tx, op, *supported))


def compare(tx: Tracer, op: Operator, left: Variable, right: Variable) -> OperatorResult:
    """Trace a comparison of a symbol with a symbol or constant."""
    if (operands := _coerce(tx, left, right)) is None:
        return NotImplemented
    if op.is_equality:
        truth, other = operands if _is_symbolic(operands[0], bool) else operands[::-1]
        if _is_symbolic(truth, bool) and other.is_constant and other.constant in (0, 1):
            same = bool(other.constant) == (op.symbol == "==")
            return truth if same else emit_node(tx, "call_function", torch.sym_not, [truth])
    left, right = (_computed_by_python(tx, v) for v in operands)
    operands = _specialize_symbools(tx, op, left, right)
    is_symbolic = any(v.is_symbolic for v in operands)
    if op.is_equality and is_symbolic and not all(v.is_symbolic or _is_number(v) for v in operands):
        return ConstantVariable(op.symbol == "!=")
    return _emit_or_fold(tx, op, *operands)


def unary(tx: Tracer, op: Operator, value: Variable) -> Variable:
    """Trace a unary operator on a symbol."""
    if _is_symbolic(value, bool):
        return ConstantVariable(value.as_python_constant(tx)).unary(tx, op)
    if op.symbol == "~" and _is_symbolic(value, int):
        result: Variable = operate(tx, BINARY["-"], ConstantVariable(-1), value)
        return result
    return emit_node(tx, "call_function", op.function, [value])


def _computed_by_python(tx: Tracer, value: Any) -> Any:
    """Return a float that sympy may round otherwise as a number that Python computes first."""
    if not _is_symbolic(value, float) or not value.rounding_symbols or value.depends_on_unbacked_float:
        return value
    computed = compute_before_graph(tx, None, [value.node])
    return value if computed is None else realize(tx, tx.wrap(*computed))


def _is_symbolic(value: Variable, kind: type) -> bool:
    return value.is_symbolic and value.python_type() is kind


def _is_number(value: Variable) -> bool:
    return issubclass(value.python_type(), (int, float, complex))


def _coerce(tx: Tracer, left: Variable, right: Variable) -> tuple[Variable, Variable] | None:
    """Convert operands that a symbol's operator cannot take; None if one is no constant.

    If the other operand is a SymInt, a bool becomes an int. If it is a numpy scalar, a symbol becomes a constant: the result is numpy's.
    """
    operands = [left, right]
    for n, value in enumerate(operands):
        other = operands[1 - n]
        if value.is_symbolic:
            continue
        if not value.is_constant:
            return None
        if value.python_type().__module__ == "numpy":
            return _specialize(tx, left, right)
        if value.python_type() is bool and _is_symbolic(other, int):
            operands[n] = ConstantVariable(int(value.constant))
    return operands[0], operands[1]


def _specialize(tx: Tracer, *operands: Variable) -> tuple[Variable, Variable]:
    first, second = (ConstantVariable(v.as_python_constant(tx)) if v.is_symbolic else v for v in operands)
    return first, second


def _emit_or_fold(tx: Tracer, op: Operator, left: Variable, right: Any) -> Variable:
    if left.is_symbolic or right.is_symbolic:
        numbers = [v.sym if v.is_symbolic else v.constant for v in (left, right)]
        is_division = op.symbol in ("/", "//", "%") and right.is_symbolic and not right.rounding_symbols
        if is_division and (right.sym.node.has_hint() or _cancels(op, numbers, [right.sym])):
            right.is_truthy(tx)  # guards that the divisor is not 0: a result that nothing reads would not be computed
        if op.symbol in _TENSOR_OPS and _cancels(op, numbers, filter(is_unbacked_float, numbers)):
            return _compute_on_tensors(tx, op, left, right)
        return emit_node(tx, "call_function", op.function, [left, right])
    return tx.fold_constant(op.function, *tx.as_python_constants([left, right]))


_TENSOR_OPS = frozenset(("+", "-", "*"))
"""Operators of floats that never raise, and are the same on tensors of one element."""


def _cancels(op: Operator, operands: Iterable[Any], numbers: Iterable[Any]) -> bool:
    """Return True if algebra drops a symbol of ``numbers`` from the result.

    ``k - k`` and ``k * 0`` are 0 to sympy, and NaN if ``k`` is infinite; ``k // k`` is 1, and raises if ``k`` is 0.
    """
    symbols = {symbol for number in numbers for symbol in number.node.expr.free_symbols}
    return bool(symbols) and not symbols <= op.function(*operands).node.expr.free_symbols


def _compute_on_tensors(tx: Tracer, op: Operator, *operands: Variable) -> Variable:
    """Compute a number from tensors of one element, which no stage simplifies."""
    options: dict[str, Variable] = {
        "dtype": ConstantVariable(torch.float64),
        "device": ConstantVariable(torch.device("cpu")),
    }
    tensors = [emit_node(tx, "call_function", torch.scalar_tensor, [v], options) for v in operands]
    return emit_node(tx, "call_function", op.function, tensors).call_method(tx, "item", [], {})


_SPECIALIZED_FLOAT_OPS = frozenset(("**", "//", "%"))
"""Operators that ShapeEnv rejects for some floats, e.g. the power of a negative float."""


def _supported_symfloats(tx: Tracer, op: Operator, left: Variable, right: Variable) -> tuple[Variable, Variable] | None:
    """Return the operands; None if the operator does not support symbolic floats like these."""
    operands = (left, right)
    if op.symbol == "//" and _is_symbolic(left, int) and right.python_type() is int and not right.is_symbolic:
        # sympy merges nested floor divisions; that is right for positive divisors only
        by = right.as_python_constant(tx)
        return operands if by >= 0 else (unary(tx, UNARY["-"], left), ConstantVariable(-by))
    is_specialized = op.symbol in _SPECIALIZED_FLOAT_OPS and any(_is_symbolic(v, float) for v in operands)
    if is_specialized and op.symbol == "**":
        is_specialized = any(v.is_symbolic and not _is_positive(v) for v in operands)
    return None if is_specialized or any(v.python_type() is complex for v in operands) else operands


def _is_positive(value: Any) -> bool:
    """Return True if the symbol's hint is positive, or if it is unbacked and has no hint."""
    return has_unbacked_symbols(value.sym) or value.sym.node.hint > 0


def _specialize_symbools(tx: Tracer, op: Operator, left: Variable, right: Variable) -> tuple[Variable, Variable]:
    """Specialize SymBool operands when SymBool does not implement the operator."""
    operands = (left, right)
    is_logical = op.symbol in ("&", "|") and all(v.python_type() is bool for v in operands)
    if is_logical or op.symbol in _TENSOR_OPS:
        return operands
    first, second = (ConstantVariable(v.as_python_constant(tx)) if _is_symbolic(v, bool) else v for v in operands)
    return first, second
