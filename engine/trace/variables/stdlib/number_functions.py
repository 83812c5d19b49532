"""Rules for builtin number functions (``int``, ``round``, ...) and ``math``."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import torch

from engine.ir.introspection.python_operators import DIVMOD
from engine.ir.introspection.symbols import has_unbacked_symbols
from engine.ir.register_once import register_each, register_table
from engine.options import config
from engine.trace.annotations import Tracer
from engine.trace.computed_conditions import compute_numbers
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.operators import arithmetic
from engine.trace.variables.base import (
    FALSE,
    NONE,
    Args,
    ConstantVariable,
    Kwargs,
    NotPythonConstant,
    Variable,
    realize,
    type_name,
)
from engine.trace.variables.callable_registry import RULES_BY_ID, register_bound_rule, register_rule
from engine.trace.variables.containers.sequences import TupleVariable, sequence_items
from engine.trace.variables.objects.id_and_hash import HashVariable
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable
from engine.trace.variables.tensors.sym_node import SymNodeVariable
from engine.trace.variables.tensors.tensor import TensorVariable


@register_table(register_rule, {int: int, float: float, complex: complex, torch.sym_int: int, torch.sym_float: float})
def _construct_number(make: Any, kind: type, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if len(args) != 1 or kwargs:
        return arithmetic.fold_constant_call(tx, kind, args, kwargs)
    return _convert(realize(tx, args[0]), tx, kind)


@functools.singledispatch
def _convert(of: Variable, tx: Tracer, kind: type) -> Variable:
    """Convert a value by ``int``, ``float`` or ``complex``."""
    if of.is_numpy_array and not of.get_attr(tx, "ndim").as_python_constant(tx):
        return _convert(realize(tx, of.call_method(tx, "item", [], {})), tx, kind)
    number = of.as_graph_operand(tx) if of.is_constant else None
    if number is not None and number.is_symbolic:
        return _convert(number, tx, kind)
    return arithmetic.fold_constant_call(tx, kind, [of], {})


@_convert.register(TensorVariable)
def _convert_tensor(of: TensorVariable, tx: Tracer, kind: type) -> Variable:
    return _convert(realize(tx, of.call_method(tx, "item", [], {})), tx, kind)


@_convert.register(SymNodeVariable)
def _convert_symbol(of: SymNodeVariable, tx: Tracer, kind: type) -> Variable:
    if of.python_type() is kind:
        return of
    if kind is float or (kind is int and of.python_type() is float):
        return emit_node(tx, "call_function", torch.sym_float if kind is float else torch.sym_int, [of])
    if kind is int and of.python_type() is bool and has_unbacked_symbols(of.sym):
        return emit_node(tx, "call_function", torch.sym_ite, [of, ConstantVariable(1), ConstantVariable(0)])
    return ConstantVariable(kind(of.as_python_constant(tx)))


@_convert.register(UserDefinedObjectVariable)
def _convert_object(of: UserDefinedObjectVariable, tx: Tracer, kind: type) -> Variable:
    name = f"__{kind.__name__}__"
    also = ("__float__", "__index__") if kind is complex else ("__index__",)
    defined = next((n for n in (name, *also) if of.lookup_special_method(tx, n) is not None), None)
    if kind is int and defined is None and of.lookup_special_method(tx, "__trunc__") is not None:
        raise Unsupported("warning", "int() by __trunc__, which warns")
    return _checked_number(tx, kind, of, defined or name)


def _checked_number(tx: Tracer, kind: type, of: UserDefinedObjectVariable, name: str) -> Variable:
    """Call ``__int__`` or similar and check the type of its result."""
    number = of.call_special_method(tx, name, [])
    result_type: Any = {"__index__": int, "__float__": float}.get(name, kind)
    if not issubclass(number.python_type(), result_type):
        owner = f"{of.cls.__name__}." if name == "__float__" else ""
        tx.raise_type_error(f"{owner}{name} returned non-{result_type.__name__} (type {number.python_type().__name__})")
    if result_type is not kind:
        return realize(tx, tx.wrap_static(kind).call(tx, [number], {}))
    if number.python_type() is not kind and not number.is_graph_value:
        raise Unsupported("warning", f"{kind.__name__}() by {name}, which raises a warning")
    return number


@register_bound_rule(torch.sym_not)
def _sym_not(tx: Tracer, a: Variable) -> Variable:
    if a.sym is not None and a.python_type() is bool:
        return emit_node(tx, "call_function", torch.sym_not, [a])
    return ConstantVariable(not a.is_truthy(tx))


@register_bound_rule(bool)
def _bool(tx: Tracer, of: Variable = FALSE) -> Variable:
    if of.fake is not None and config.capture_scalar_outputs and of.fake.numel() == 1:
        boolean_tensor = (
            of if of.fake.dtype is torch.bool else realize(tx, arithmetic.compare_op(tx, "!=", of, ConstantVariable(0)))
        )
        return boolean_tensor.call_method(tx, "item", [], {})
    return ConstantVariable(of.is_truthy(tx))


@register_rule(pow)
def _pow(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if len(args) == 2:
        return arithmetic.binary_op(tx, "**", args[0], args[1])
    power = args and realize(tx, args[0]).call_user_method(tx, "__pow__", [*args[1:], *kwargs.values()])
    return power or arithmetic.fold_constant_call(tx, pow, args, kwargs)


@register_rule(divmod)
def _divmod(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if len(args) != 2 or kwargs:
        tx.fold_constant(divmod, *[1] * len(args), **dict.fromkeys(kwargs))
    left, right = realize(tx, args[0]), realize(tx, args[1])
    if left.is_constant and right.is_constant:
        return tx.fold_constant(divmod, left.constant, right.constant)
    if left.is_user_object or right.is_user_object:
        result: Variable = arithmetic.call_operator_methods(tx, DIVMOD, left, right)
        if result is not NotImplemented:
            return result
        raise Unsupported("builtin-arguments", f"divmod() of {left.describe()} and {right.describe()}")
    if left.fake is not None or right.fake is not None:
        kinds = f"'{type_name(left.python_type())}' and '{type_name(right.python_type())}'"
        tx.raise_type_error(f"unsupported operand type(s) for divmod(): {kinds}")
    return TupleVariable([arithmetic.binary_op(tx, "//", left, right), arithmetic.binary_op(tx, "%", left, right)])


@register_rule(round)
def _round(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    of = realize(tx, args[0])
    if of.fake is not None and of.lacks_methods("__round__"):
        tx.raise_type_error(f"type {of.python_type().__name__} doesn't define __round__ method")
    if of.fake is not None:
        return of.call_method(tx, "round", [], {"decimals": args[1]} if len(args) > 1 else kwargs)
    if (rounded := of.call_user_method(tx, "__round__", args[1:])) is not None:
        return rounded
    if of.is_symbolic and of.python_type() is float and not kwargs:
        digits = [ConstantVariable(n) for n in tx.as_python_constants(args[1:]) if n is not None]
        return emit_node(tx, "call_function", round, [of, *digits])
    if of.is_symbolic and of.python_type() is int and len(args) == 1 and not kwargs:
        return of
    return arithmetic.fold_constant_call(tx, round, args, kwargs)


@register_bound_rule(hash)
def _hash(tx: Tracer, of: Variable) -> Variable:
    if (user_hash := of.call_user_method(tx, "__hash__", [])) is not None:
        return user_hash
    if of.python_type().__hash__ is None:
        tx.raise_error(TypeError, f"unhashable type: '{type_name(of.python_type())}'", is_exact=False)
    if of.is_constant or of.is_symbolic or of.sequence_contents is of or of.python_type() is frozenset:
        try:
            return tx.fold_constant(hash, of.as_python_constant(tx))
        except NotPythonConstant:
            pass
    return HashVariable(of, hash(of.hash_key(tx)))


_SPECIAL_METHODS = {
    math.floor: "__floor__",
    math.ceil: "__ceil__",
    math.trunc: "__trunc__",
    operator.index: "__index__",
}


@register_table(register_rule, _SPECIAL_METHODS)
def _call_special_method(function: Any, name: str, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Trace a function that calls a special method; a symbol is rounded to an int."""
    of = realize(tx, args[0])
    if of.is_symbolic and of.python_type() is int:
        return of
    if of.is_symbolic and of.python_type() is float and function is not operator.index:
        return emit_node(tx, "call_function", function, [of])
    return of.call_user_method(tx, name, args[1:]) or arithmetic.fold_constant_call(tx, function, args, kwargs)


@register_each(register_rule, math.isnan, math.isinf, math.isfinite)
def _finiteness_test(function: Any, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Trace ``isnan``, ``isinf`` or ``isfinite``.

    A guard ensures that a symbolic input float is finite.
    """
    of = realize(tx, args[0]) if len(args) == 1 else NONE
    if of.is_symbolic and (of.symbol is not None or of.python_type() is int) and not kwargs:
        return ConstantVariable(function is math.isfinite)
    return arithmetic.fold_constant_call(tx, function, args, kwargs)


@register_rule(math.prod)
def _prod(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if len(args) != 1 or not kwargs.keys() <= {"start"}:
        return arithmetic.fold_constant_call(tx, math.prod, args, kwargs)
    items = [realize(tx, item) for item in sequence_items(tx, args[0])]
    if not any(item.is_symbolic for item in items):
        return arithmetic.fold_constant_call(tx, math.prod, [TupleVariable(list(items))], kwargs)
    total = realize(tx, kwargs.get("start", ConstantVariable(1)))
    for item in items:
        total = arithmetic.binary_op(tx, "*", total, item)
    return total


_OTHER_FUNCTIONS = [
    f for f in vars(math).values() if callable(f) and f.__module__ == "math" and id(f) not in RULES_BY_ID
]


@register_each(register_rule, *_OTHER_FUNCTIONS)
def _compute_before_graph(function: Any, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Compute a function of symbols in Python, before the graph runs."""
    values = [realize(tx, arg) for arg in args]
    computed = None if kwargs else compute_numbers(tx, function, values)
    return computed or arithmetic.fold_constant_call(tx, function, values, kwargs)


@register_rule(bool.__new__)
def _bool_new(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    of = realize(tx, args[0])
    if of.as_class() is not bool or kwargs or len(args) > 2:
        return arithmetic.fold_constant_call(tx, bool.__new__, args, kwargs, "bool.__new__ is called")
    return _bool(tx, *(realize(tx, a) for a in args[1:]))
