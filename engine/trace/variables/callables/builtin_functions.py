"""Variables of functions and methods that are implemented in C."""

from __future__ import annotations

import types
from typing import Any, cast

from engine.ir.guards.python_values import EqualsMatch
from engine.ir.introspection.python_objects import is_heap_type
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.trace.annotations import BuiltinMethodVariable, Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.graph_breaks.reasons import unknown_call_kind
from engine.trace.operators.arithmetic import fold_constant_call
from engine.trace.variables.base import Args, FixedObjectVariable, Kwargs, Variable, realize
from engine.trace.variables.builder import register_builder_if
from engine.trace.variables.callable_registry import (
    SUBCLASS_METHOD_RULES,
    UNBOUND_METHOD_RULES,
    class_of_classmethod,
    find_rule,
)
from engine.trace.variables.callables.methods import check_arity, check_method_arity
from engine.trace.variables.torch_api.trace_rules import can_constant_fold, is_in_graph_function


class BuiltinVariable(FixedObjectVariable):
    """A function or method implemented in C."""

    is_copied_by_reference = True

    def describe(self) -> str:
        module = getattr(self.real_object, "__module__", None)
        name = getattr(self.real_object, "__qualname__", None) or getattr(
            self.real_object, "__name__", repr(self.real_object)
        )
        if str(name).startswith("pybind11"):
            name = self.real_object.__name__
        return f"{module}.{name}" if module and module != "builtins" else str(name)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in ("__name__", "__qualname__", "__module__", "__doc__"):
            return tx.from_python(getattr(self.real_object, name))
        if not hasattr(self.real_object, name):
            tx.raise_error(AttributeError, f"'{type(self.real_object).__name__}' object has no attribute '{name}'")
        return tx.wrap_static(getattr(self.real_object, name))

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        result = call_classmethod_on_subclass(tx, self.real_object, args, kwargs)
        if result is not None:
            return result
        rule = find_rule(self.real_object)
        if rule is not None:
            check_arity(tx, self.real_object, args, kwargs)
            return rule(tx, args, kwargs)
        if is_in_graph_function(self.real_object):
            return emit_node(tx, "call_function", self.real_object, args, kwargs)
        if can_constant_fold(self.real_object):
            return fold_constant_call(tx, self.real_object, args, kwargs)
        method = call_unbound_method(tx, self.real_object, args, kwargs)
        if method is not None:
            return method
        getter = getattr(self.real_object, "__self__", None)
        if isinstance(getter, types.GetSetDescriptorType) and self.real_object.__name__ == "__get__" and args:
            return realize(tx, args[0]).get_attr(tx, getter.__name__)
        raise Unsupported(unknown_call_kind(self.real_object), f"{self.describe()} is called")


_SCALARS = (int, float, bytes)


def call_classmethod_on_subclass(tx: Tracer, real: Any, args: Args, kwargs: Kwargs) -> Variable | None:
    """Call a C classmethod on a subclass, which returns an instance of that subclass.

    Return None for any other callable.
    """
    cls = class_of_classmethod(real)
    if cls is None or cls in _SCALARS:
        return None
    name = real.__name__
    owner = next((base for base in cls.__mro__ if name in vars(base)), cls)
    rule = SUBCLASS_METHOD_RULES.get((owner, name)) if cls is not owner else None
    if rule is not None and is_heap_type(cls):
        return rule(tx, cls, args, kwargs)
    base = next((b for b in _SCALARS if issubclass(cls, b)), None)
    if base is None or name.startswith("__"):
        return None
    result = tx.wrap_static(getattr(base, name)).call(tx, args, kwargs)
    return tx.wrap_static(cls).call(tx, [result], {})


_C_CALLABLES = (
    *(types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType),
    *(types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType),
)


def _is_builtin(real: Any) -> bool:
    is_of_c = isinstance(real, _C_CALLABLES)
    return is_of_c or has_call_rule(real) or type(real).__module__ in ("operator", "_operator")


@register_builder_if(30, _is_builtin)
def _builtin(tx: Tracer, real: Any, source: Source) -> Variable:
    owner = getattr(real, "__self__", None) if isinstance(real, types.BuiltinFunctionType) else None
    # The __self__ of a pybind11 function carries no information.
    is_static = isinstance(owner, (types.ModuleType, type, type(None))) or type(owner).__name__.startswith("pybind11")
    if not is_static and not has_call_rule(real):
        return _bound_builtin(tx, real, owner, source)
    tx.guard_identity(real, source, "it was called")
    return BuiltinVariable(real, source)


def has_call_rule(real: Any) -> bool:
    """Return True if the builtin is a graph operator or has a call rule."""
    return is_in_graph_function(real) or find_rule(real) is not None


def _bound_builtin(tx: Tracer, real: Any, owner: Any, source: Source) -> Variable:
    """Wrap a builtin method that was bound outside the traced code, such as ``items.append``."""
    tx.guard_type(real, source, "it was called")
    tx.guard(EqualsMatch, AttrSource(source, "__name__"), real.__name__, why="it was called")
    of = tx.wrap(owner, AttrSource(source, "__self__"))
    bound = cast("BuiltinMethodVariable", of.get_attr(tx, real.__name__))
    bound.source = source
    return bound


def call_unbound_method(tx: Tracer, real: Any, args: Args, kwargs: Kwargs) -> Variable | None:
    """Trace ``list.append(x, 1)`` as ``x.append(1)``; None unless it is a method of a C class."""
    owner = getattr(real, "__objclass__", None)
    if owner is None:
        return None
    if not args:
        return None
    of = realize(tx, args[0])
    if not issubclass(of.python_type(), owner):
        return None
    name = real.__name__
    check_method_arity(tx, owner, name, args[1:], kwargs)
    by_owner = UNBOUND_METHOD_RULES.get(owner)
    result = None if by_owner is None else by_owner(tx, of, name, args[1:], kwargs)
    return of.call_c_method(tx, owner, name, args[1:], kwargs) if result is None else result
