"""Dispatches Python operators as CPython does: own method, reflected method, TypeError.

What an operator does on a value is a method of its variable (``binary``, ``compare`` and so on).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from engine.ir.introspection.python_objects import is_heap_type
from engine.ir.introspection.python_operators import BINARY, COMPARE, INPLACE, METHODS, UNARY, Operator
from engine.trace.annotations import Tracer
from engine.trace.exc import BreakGraph, Unsupported
from engine.trace.operators.operand import OperatorResult
from engine.trace.variables.base import (
    NONE,
    Args,
    ConstantVariable,
    Kwargs,
    NotPythonConstant,
    Variable,
    is_none,
    realize,
)


def binary_op(tx: Tracer, symbol: str, left: Variable, right: Variable) -> Variable:
    """Trace ``left symbol right``; ``symbol`` may be in-place (``+=``)."""
    left, right = realize(tx, left), realize(tx, right)
    op = INPLACE.get(symbol) or BINARY[symbol]
    result = NotImplemented if op.plain is None else left.inplace(tx, op, right)
    if result is NotImplemented:
        result = call_operator_methods(tx, op.plain or op, left, right)
    if result is NotImplemented:
        result = _call_sequence_methods(tx, op, left, right)
    return _operate_on_constants(tx, op, left, right) if result is NotImplemented else result


def call_operator_methods(tx: Tracer, op: Operator, left: Variable, right: Variable) -> OperatorResult:
    """Call the operands' methods for a binary operator, as ``binary_op1`` of CPython does.

    The reflected method goes first if the right operand's class derives from the left one's. For operands of one
    kind and class, it is not called.
    """
    is_subclass = _is_strict_subclass(right, left)
    if is_subclass and (result := right.reflected(tx, op, left)) is not NotImplemented:
        return result
    result = left.binary(tx, op, right)
    is_same_kind = type(left) is type(right) and left.python_type() is right.python_type()
    if result is NotImplemented and not is_subclass and not is_same_kind:
        return right.reflected(tx, op, left)
    return result


def _is_strict_subclass(value: Variable, of: Variable) -> bool:
    cls, base = value.python_type(), of.python_type()
    return cls is not base and issubclass(cls, base)


def _call_sequence_methods(tx: Tracer, op: Operator, left: Variable, right: Variable) -> OperatorResult:
    """Concatenate or repeat sequences, after all methods of numbers."""
    plain = op.plain or op
    if plain.symbol == "+":
        return left.concat(tx, op, right)
    if plain.symbol != "*":
        return NotImplemented
    result = left.repeat(tx, op, right)
    if result is NotImplemented and not (op is not plain and is_heap_type(left.python_type())):
        return right.repeat(tx, plain, left)
    return result  # ``*=`` asks the right operand only if the left one's class has no slots of a sequence


def _operate_on_constants(tx: Tracer, op: Operator, left: Variable, right: Variable) -> Variable:
    """Compute an operator that no class implements on known operands."""
    try:
        classes: dict[type, type] = {}
        values = [v.as_operator_value(tx, classes) for v in (left, right)]
    except NotPythonConstant:
        pass
    else:
        return tx.fold_constant(op.function, *values)
    raise Unsupported("unsupported-operation", f"{left.describe()} {op.symbol} {right.describe()}")


def compare_op(tx: Tracer, symbol: str, left: Variable, right: Variable) -> Variable:
    """Trace one of the six comparisons, as ``do_richcompare`` of CPython does."""
    left, right = realize(tx, left), realize(tx, right)
    op = COMPARE[symbol]
    calls = [(left, op, right), (right, op.swapped, left)]
    for of, method, argument in reversed(calls) if _is_strict_subclass(right, left) else calls:
        result: Variable = of.compare(tx, method, argument)
        if result is not NotImplemented:
            return result
    by_identity = left.equals_by_identity and right.equals_by_identity
    if op.is_equality and by_identity and not all(tx.is_python_constant(v) for v in (left, right)):
        return ConstantVariable(is_same_object(tx, left, right) == (symbol == "=="))
    return _operate_on_constants(tx, op, left, right)


def unary_op(tx: Tracer, symbol: str, value: Variable) -> Variable:
    """Trace ``-x``, ``+x`` or ``~x``."""
    value = realize(tx, value)
    if symbol == "~" and value.python_type() is bool and sys.version_info >= (3, 12):
        raise Unsupported("warning", "~ of a bool, which warns from Python 3.12 on")
    return value.unary(tx, UNARY[symbol])


def is_same_object(tx: Tracer, left: Variable, right: Variable) -> bool:
    """Return ``left is right``."""
    operands = left, right
    left, right = realize(tx, left), realize(tx, right)
    if left is right:
        # A compiled module is traced as its original, which is another object.
        first, second = map(tx.objects.real_object, operands)
        return first is second or first is NotImplemented or second is NotImplemented
    for value, other in ((left, right), (right, left)):
        if (same := value.is_same_as(tx, other)) is not None:
            return same
    left_object, right_object = tx.objects.real_object(left), tx.objects.real_object(right)
    if left_object is NotImplemented or right_object is NotImplemented:
        return False
    if all(v.is_mutable or v.as_python_object() is NotImplemented for v in (left, right)):
        tx.guard_same_object(left, right, left_object is right_object)
    return left_object is right_object


def identical_or_equal(tx: Tracer, left: Variable, right: Variable) -> bool:
    """Compare two items as ``in``, ``index`` and container equality do: identity or equality."""
    if left is right:
        return True
    if left.is_constant and right.is_constant and left.constant is right.constant:
        return True  # also for values that do not equal themselves, such as NaN
    return realize(tx, compare_op(tx, "==", left, right)).is_truthy(tx)


def fold_constant_call(tx: Tracer, fn: Any, args: Args, kwargs: Kwargs, what: str = "") -> Variable:
    """Call a pure function at trace time; all arguments must be constants."""
    what = what or f"{getattr(fn, '__name__', fn)}() of {', '.join(realize(tx, a).describe() for a in args)}"
    with BreakGraph("non-constant-arguments", what, NotPythonConstant):
        values = tx.as_python_constants(args)
        keywords = tx.as_python_keywords(kwargs)
    return tx.fold_constant(fn, *values, **keywords)


_FOLDED_METHODS = frozenset(("__repr__", "__str__", "__format__", "__hash__", "__reduce__"))


def call_special_by_name(tx: Tracer, of: Variable, name: str, args: Args, kwargs: Kwargs) -> Variable:
    """Call a special method by its name on a builtin container, or any method on constants."""
    if len(args) == 1 and name in METHODS:
        return _call_operator_method(tx, of, name, args[0])
    if not kwargs and (simple := _SIMPLE_METHODS.get((name, len(args)))) is not None:
        return simple(tx, of, *args)
    if name == "__init__":
        return NONE
    if name == "__reversed__" and not args and hasattr(of.python_type(), name):
        return realize(tx, tx.wrap_static(reversed).call(tx, [of], {}))
    method = getattr(of.python_type(), name, None)
    if method is None:
        return tx.raise_error(AttributeError, f"'{of.python_type().__name__}' object has no attribute '{name}'")
    if of.python_type() in (tuple, frozenset) or name in _FOLDED_METHODS:
        return fold_constant_call(tx, method, [of, *args], kwargs, f"{of.describe()}.{name}")
    raise of.unsupported_method(name)


def _call_operator_method(tx: Tracer, of: Variable, name: str, other: Variable) -> Variable:
    """Call a special method of two operands; NotImplemented is a result like any other."""
    kind, op = METHODS[name]
    other = realize(tx, other)
    result: Variable = getattr(of, kind)(tx, op, other)
    if result is not NotImplemented:
        return result
    symbol = (op.plain or op).symbol
    if symbol not in ("+", "*"):
        return ConstantVariable(NotImplemented)
    result = (of.concat if symbol == "+" else of.repeat)(tx, op, other)
    if result is NotImplemented:  # the method of a sequence raises a TypeError
        raise Unsupported("unsupported-operation", f"{of.describe()}.{name}({other.describe()})")
    return result


def _run_and_return_none(method: str) -> Callable[..., Variable]:
    def run(tx: Tracer, of: Variable, *args: Variable) -> Variable:
        getattr(of, method)(tx, *args)
        return NONE

    return run


_SIMPLE_METHODS: dict[tuple[str, int], Callable[..., Variable]] = {
    ("__setitem__", 2): _run_and_return_none("set_item"),
    ("__delitem__", 1): _run_and_return_none("del_item"),
    ("__getitem__", 1): lambda tx, of, key: of.get_item(tx, key),
    ("__contains__", 1): lambda tx, of, item: ConstantVariable(of.contains(tx, item)),
    ("__len__", 0): lambda tx, of: of.length(tx),
    ("__iter__", 0): lambda tx, of: of.get_iterator(tx),
    ("__bool__", 0): lambda tx, of: ConstantVariable(of.is_truthy(tx)),
}
"""By name and number of arguments."""


def sort_items(tx: Tracer, items: list[Variable], kwargs: Kwargs) -> list[Variable]:
    """Return the items in the order of ``sorted(items, key=..., reverse=...)``.

    Comparisons run traced code where needed.
    """
    key = realize(tx, kwargs["key"]) if "key" in kwargs else NONE
    reverse = realize(tx, kwargs["reverse"]).is_truthy(tx) if "reverse" in kwargs else False
    keys = [realize(tx, i) if is_none(key) else realize(tx, key.call(tx, [i], {})) for i in items]

    def less(left_index: int, right_index: int) -> int:  # sorting calls only ``<``
        return -realize(tx, compare_op(tx, "<", keys[left_index], keys[right_index])).is_truthy(tx)

    order = sorted(range(len(items)), key=functools.cmp_to_key(less), reverse=reverse)
    return [items[n] for n in order]
