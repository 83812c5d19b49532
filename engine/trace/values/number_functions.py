"""Rules for the builtin functions that make numbers and calculate with them."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from engine.options import config
from engine.trace import operations
from engine.trace.graph_builder import emit
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Const, NotConstant, Value, force, type_name
from engine.trace.values.classes import ClassValue
from engine.trace.values.identity import HashValue
from engine.trace.values.objects import ObjectValue
from engine.trace.values.refusals import refuse_operands
from engine.trace.values.rules import special
from engine.trace.values.sequences import (
    SequenceValue,
    TupleValue,
)
from engine.trace.values.symbolic import SymValue, has_hint
from engine.trace.values.tensor import TensorValue

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


def _number(kind: type) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        if not args:
            return operations.fold_call(tx, kind, args, kwargs, f"{kind.__name__}()")
        of = force(tx, args[0])
        if len(args) > 1 or kwargs:
            return operations.fold_call(tx, kind, args, kwargs, f"{kind.__name__}() of {of.describe()}")
        if isinstance(of, TensorValue):
            method = of.call_method(tx, "item", [], {})
            return rule(tx, [method], {})
        if isinstance(of, SymValue):
            if of.type() is kind:
                return of
            if kind is float or (kind is int and of.type() is float):
                return emit(tx, "call_function", torch.sym_float if kind is float else torch.sym_int, [of])
            return Const(kind(of.python(tx)))
        if isinstance(of, ObjectValue):
            name = f"__{kind.__name__}__"
            if (
                kind is int
                and of.method(tx, "__trunc__") is not None
                and not (of.method(tx, name) or of.method(tx, "__index__"))
            ):
                raise Unsupported("unknown-call", "int() by __trunc__, which warns")
            also = ("__float__", "__index__") if kind is complex else ("__index__",)
            found = next((n for n in (name, *also) if of.method(tx, n) is not None), name)
            return _checked_number(tx, kind, of, found)
        return operations.fold_call(tx, kind, args, kwargs, f"{kind.__name__}() of {of.describe()}")

    return rule


def _checked_number(tx: Tracer, kind: type, of: ObjectValue, name: str) -> Value:
    """What ``__int__`` or its like gives, which must be such a number."""
    made = of.call_special(tx, name, [])
    wanted: Any = {"__index__": int, "__float__": float}.get(name, kind)
    if not issubclass(made.type(), wanted):
        owner = f"{of.cls.__name__}." if name == "__float__" else ""
        tx.raise_type_error(f"{owner}{name} returned non-{wanted.__name__} (type {made.type().__name__})")
    if wanted is not kind:
        return force(tx, tx.fixed(kind).call(tx, [made], {}))
    if made.type() is not kind and not isinstance(made, (SymValue, TensorValue)):
        raise Unsupported("unknown-call", f"{kind.__name__}() by {name}, which warns of what it gives")
    return made


for _kind in (int, float, complex):
    special(_kind)(_number(_kind))
special(torch.sym_int)(_number(int))
special(torch.sym_float)(_number(float))


@special(bool)
def _bool(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0]) if args else Const(False)
    if isinstance(of, TensorValue) and config.capture_scalar_outputs and of.fake.numel() == 1:
        whole = of if of.fake.dtype is torch.bool else force(tx, operations.compare(tx, "!=", of, Const(0)))
        return whole.call_method(tx, "item", [], {})
    return Const(of.truth(tx))


@special(abs)
def _abs(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    if isinstance(of, (TensorValue, SymValue)):
        return emit(tx, "call_function", abs, [of])
    if isinstance(of, ObjectValue):
        return of.call_special(tx, "__abs__", [])
    on_arrays = operations.on_arrays(tx, abs, [of])
    if on_arrays is not None:
        return on_arrays
    return operations.fold_call(tx, abs, args, kwargs, f"abs() of {of.describe()}")


@special(pow)
def _pow(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if len(args) == 2:
        return operations.binary(tx, "**", args[0], args[1])
    of = force(tx, args[0]) if args else NONE
    if isinstance(of, ObjectValue) and of.method(tx, "__pow__") is not None:
        return of.call_special(tx, "__pow__", [*args[1:], *kwargs.values()])
    return operations.fold_call(tx, pow, args, kwargs, "pow()")


@special(divmod)
def _divmod(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if len(args) != 2 or kwargs:
        tx.fold(divmod, *[1] * len(args), **dict.fromkeys(kwargs))
    left, right = force(tx, args[0]), force(tx, args[1])
    found = operations.by_methods(tx, "divmod", left, right)
    if found is not None:
        return found
    if isinstance(left, Const) and isinstance(right, Const):
        return tx.fold(divmod, left.value, right.value)
    if isinstance(left, ObjectValue) or isinstance(right, ObjectValue):
        refuse_operands(tx, divmod, left, right)
    elif isinstance(left, TensorValue) or isinstance(right, TensorValue):
        kinds = f"'{type_name(left.type())}' and '{type_name(right.type())}'"
        tx.raise_type_error(f"unsupported operand type(s) for divmod(): {kinds}")
    return TupleValue([operations.binary(tx, "//", left, right), operations.binary(tx, "%", left, right)])


@special(round)
def _round(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    if isinstance(of, TensorValue) and of.lacks("__round__"):
        tx.raise_type_error(f"type {of.type().__name__} doesn't define __round__ method")
    if isinstance(of, TensorValue):
        return of.call_method(tx, "round", [], {"decimals": args[1]} if len(args) > 1 else kwargs)
    if isinstance(of, ObjectValue) and of.method(tx, "__round__") is not None:
        return of.call_special(tx, "__round__", args[1:])
    if isinstance(of, SymValue) and of.type() is float and not kwargs:
        return emit(tx, "call_function", round, [of, *(Const(n) for n in tx.constants(args[1:]) if n is not None)])
    if isinstance(of, SymValue) and of.type() is int and len(args) == 1 and not kwargs:
        return of
    return operations.fold_call(tx, round, args, kwargs, f"round() of {of.describe()}")


@special(hash)
def _hash(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    if isinstance(of, ObjectValue) and of.method(tx, "__hash__") is not None:
        return of.call_special(tx, "__hash__", [])
    if of.type().__hash__ is None:
        tx.raise_type_error(f"unhashable type: '{type_name(of.type())}'")
    if isinstance(of, (Const, TupleValue)) or of.type() is frozenset:
        try:
            return tx.fold(hash, of.python(tx))
        except NotConstant:
            pass
    return HashValue(tx, of)


def _by_method(function: Any, name: str) -> None:
    """A pure function that asks objects for a special method first; of a symbol it makes a whole number."""

    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        of = force(tx, args[0])
        if isinstance(of, SymValue) and of.type() is int:
            return of
        if isinstance(of, SymValue) and of.type() is float and function is not operator.index:
            return emit(tx, "call_function", function, [of])
        if isinstance(of, ObjectValue) and of.method(tx, name) is not None:
            return of.call_special(tx, name, args[1:])
        return operations.fold_call(tx, function, args, kwargs, f"{function.__name__}() of {of.describe()}")

    special(function)(rule)


for _function, _method_name in (
    (math.floor, "__floor__"),
    (math.ceil, "__ceil__"),
    (math.trunc, "__trunc__"),
    (operator.index, "__index__"),
):
    _by_method(_function, _method_name)


_ANYWHERE = (math.tan, math.tanh, math.atan, math.cos, math.sin)
_WITHIN: Mapping[Any, tuple[tuple[str, float], ...]] = {
    **dict.fromkeys(_ANYWHERE, ()),
    math.sqrt: ((">=", 0),),
    math.log2: ((">", 0),),
    math.asin: ((">=", -1), ("<=", 1)),
    math.acos: ((">=", -1), ("<=", 1)),
    math.sinh: ((">=", -700), ("<=", 700)),
    math.cosh: ((">=", -700), ("<=", 700)),
}
"""Functions that torch knows of symbols, and the numbers of which each has a value: others raise, which a graph must not."""


def _by_symbol(function: Any) -> None:
    in_graph = getattr(torch, f"_sym_{function.__name__}")

    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        of = force(tx, args[0]) if len(args) == 1 else NONE
        if isinstance(of, SymValue) and of.type() is not bool and has_hint(of.sym) and not kwargs:
            bounds = [force(tx, operations.compare(tx, sign, of, Const(bound))) for sign, bound in _WITHIN[function]]
            if all(found.truth(tx) for found in bounds):
                return emit(tx, "call_function", in_graph, [of])
        return operations.fold_call(
            tx, function, args, kwargs, f"{function.__name__}() of what is not known while tracing"
        )

    special(function)(rule)


for _function in _WITHIN:
    _by_symbol(_function)


def _about_finiteness(function: Any) -> None:
    """A float that stands for itself is finite: its guard says so."""

    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        of = force(tx, args[0]) if len(args) == 1 else NONE
        if isinstance(of, SymValue) and (of.symbol is not None or of.type() is int) and not kwargs:
            return Const(function is math.isfinite)
        return operations.fold_call(
            tx, function, args, kwargs, f"{function.__name__}() of what is not known while tracing"
        )

    special(function)(rule)


for _function in (math.isnan, math.isinf, math.isfinite):
    _about_finiteness(_function)


@special(math.prod)
def _product(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0]) if len(args) == 1 and kwargs.keys() <= {"start"} else NONE
    if not isinstance(of, SequenceValue) or not any(isinstance(force(tx, item), SymValue) for item in of.items):
        return operations.fold_call(tx, math.prod, args, kwargs, "prod() of what is not known while tracing")
    total = force(tx, kwargs.get("start", Const(1)))
    for item in of.items:
        total = operations.binary(tx, "*", total, item)
    return total


@special(bool.__new__)
def _bool_new(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    if not isinstance(of, ClassValue) or of.held is not bool or kwargs or len(args) > 2:
        return operations.fold_call(tx, bool.__new__, args, kwargs, "bool.__new__ is called")
    return _bool(tx, args[1:], {})
