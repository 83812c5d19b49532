"""Rules for ``str``, ``repr``, ``format``, ``bytes`` and ``print``."""

from __future__ import annotations

from typing import Any

from engine.ir.register_once import register_table
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.operators import arithmetic
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, Variable, is_formatted_later, realize, type_name
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.functions import FunctionVariable
from engine.trace.variables.callables.methods import BoundMethodVariable
from engine.trace.variables.objects.class_lookup import find_in_class
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable
from engine.trace.variables.stdlib.string_format import container_repr
from engine.trace.variables.tensors.tensor import TensorMethodVariable


@register_rule(print)
def _print(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    descriptions = (type_name(a.python_type()) if is_formatted_later(a) else realize(tx, a).describe() for a in args)
    raise Unsupported("print", f"print({', '.join(descriptions)})")


@register_table(register_rule, {str: "__str__", repr: "__repr__"})
def _text_of(fn: Any, name: str, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if not args:
        return ConstantVariable("")
    of = realize(tx, args[0])
    if isinstance(of, UserDefinedObjectVariable):
        entry = find_in_class(of.python_type(), name)
        if entry is not None and entry.owner is not object:
            return of.call_special_method(tx, name, [])
        if name == "__str__" and of.lookup_special_method(tx, "__repr__") is not None:
            return of.call_special_method(tx, "__repr__", [])
    if of.fake is not None or isinstance(of, TensorMethodVariable):
        raise Unsupported("tensor-text", f"{name.strip('_')}() of a tensor shows its values")
    if of.as_exception() is not None:
        return of.call_method(tx, name, [], {})
    if isinstance(of, (UserDefinedObjectVariable, FunctionVariable, BoundMethodVariable)):
        real = tx.objects.real_object(of)
        if real is NotImplemented or of.source is None or isinstance(of, BoundMethodVariable):
            raise Unsupported("object-address", f"the address of {of.describe()} is shown")
        tx.guard_identity(real, of.source, "its address is shown")
        return ConstantVariable(object.__repr__(real) if of.is_user_object else repr(real))
    text = container_repr(tx, of)
    if text is not None:
        return ConstantVariable(text)
    return arithmetic.fold_constant_call(tx, fn, args, kwargs)


@register_rule(format)
def _format(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    of = realize(tx, args[0])
    spec = realize(tx, args[1]) if len(args) > 1 else ConstantVariable("")
    if (formatted := of.call_user_method(tx, "__format__", [spec])) is not None:
        return formatted
    is_formatted_by_value = of.is_constant or of.is_graph_value
    method: Any = of.python_type().__format__
    if not is_formatted_by_value and method is object.__format__:
        if spec.is_constant and spec.constant == "":
            return realize(tx, tx.wrap_static(str).call(tx, [of], {}))
        if spec.is_constant and issubclass(spec.python_type(), str):
            tx.raise_type_error(f"unsupported format string passed to {type_name(of.python_type())}.__format__")
    return arithmetic.fold_constant_call(tx, format, args, kwargs)


@register_rule(bytes)
def _bytes(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    by_method = realize(tx, args[0]).call_user_method(tx, "__bytes__", []) if args else None
    return by_method or arithmetic.fold_constant_call(tx, bytes, args, kwargs)
