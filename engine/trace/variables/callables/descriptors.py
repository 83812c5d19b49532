"""``property``, ``classmethod`` and ``staticmethod`` objects used as values.

An instance of a subclass of ``property`` holds a getter and a setter, and may override ``__get__`` and ``__set__``.
"""

from __future__ import annotations

import functools
from typing import Any

from engine.ir.register_once import register_table
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import NONE, Args, Kwargs, RealObjectVariable, Variable, is_none, realize
from engine.trace.variables.builder import is_literal, register_builder, register_subclass_builder
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.methods import BoundMethodVariable, BuiltinMethodVariable
from engine.trace.variables.objects.class_lookup import class_source, raise_missing_accessor
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable

_BINDING_METHODS = ("__get__", "__set__", "__delete__")
_WRAPPED_FUNCTION_ATTRS = ("fget", "fset", "fdel", "__func__", "__wrapped__")


class DescriptorVariable(RealObjectVariable):
    """A ``property``, ``classmethod`` or ``staticmethod``; the functions in it do not change."""

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name not in _BINDING_METHODS or kwargs:
            return super().call_method(tx, name, args, kwargs)
        return _bind(self.real_object, tx, self, name, args)

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        if self.lacks_methods("__call__"):
            return super().call(tx, args, kwargs)
        return _wrapped_function(tx, self, "__func__").call(tx, args, kwargs)  # of a staticmethod

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in _BINDING_METHODS and hasattr(self.real_object, name):
            return BuiltinMethodVariable(self, name)
        if not hasattr(self.real_object, name):
            text = f"'{type(self.real_object).__name__}' object has no attribute '{name}'"
            return tx.raise_error(AttributeError, text)
        if self.source is not None and (name in _WRAPPED_FUNCTION_ATTRS or is_literal(getattr(self.real_object, name))):
            return realize(tx, tx.wrap(getattr(self.real_object, name), AttrSource(self.source, name)))
        return super().get_attr(tx, name)


def _wrapped_function(tx: Tracer, of: Variable, name: str) -> Variable:
    """Return an attribute such as ``fget``: a wrapped function or None."""
    return realize(tx, of.get_attr(tx, name))


@functools.singledispatch
def _bind(real: Any, tx: Tracer, of: Variable, name: str, args: Args) -> Variable:
    """Call ``__get__``, ``__set__`` or ``__delete__`` of a descriptor."""
    raise of.unsupported_method(name)


@_bind.register(property)
def _bind_property(real: property, tx: Tracer, of: Variable, name: str, args: Args) -> Variable:
    instance = realize(tx, args[0])
    if name == "__get__" and is_none(instance):
        return of
    field, accessor_name = {"__get__": ("fget", "getter"), "__set__": ("fset", "setter")}.get(name, ("fdel", "deleter"))
    if getattr(real, field) is None:
        raise_missing_accessor(tx, instance.python_type(), accessor_name)
    value = args[1:2] if name == "__set__" else []
    result = _wrapped_function(tx, of, field).call(tx, [instance, *value], {})
    return realize(tx, result) if name == "__get__" else NONE


@_bind.register(staticmethod)
def _bind_static_method(real: Any, tx: Tracer, of: Variable, name: str, args: Args) -> Variable:
    return _wrapped_function(tx, of, "__func__")


@_bind.register(classmethod)
def _bind_class_method(real: Any, tx: Tracer, of: Variable, name: str, args: Args) -> Variable:
    if hasattr(type(real.__func__), "__get__") and not hasattr(real.__func__, "__code__"):
        raise Unsupported("descriptor", "classmethod.__get__() of a descriptor")
    instance, *owners = [realize(tx, a) for a in args]
    cls = instance.python_type()
    owner = owners[0] if owners and not is_none(owners[0]) else tx.wrap(cls, class_source(cls))
    return BoundMethodVariable(owner, _wrapped_function(tx, of, "__func__"))


@register_builder(property, classmethod, staticmethod)
def _descriptor(tx: Tracer, real: Any, source: Source) -> Variable:
    tx.guard_type(real, source, f"the {type(real).__name__} object itself was used")
    return DescriptorVariable(real, source)


@register_subclass_builder(55, property, why="its accessors were used")
def _property_of_subclass(tx: Tracer, real: Any, source: Source) -> Variable:
    return UserDefinedObjectVariable(type(real), source, real)


@register_table(register_rule, {vars(property)[name]: name for name in _BINDING_METHODS})
def _call_property_method(method: Any, name: str, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Build the rule of a method of ``property`` called by name, as in ``super().__get__``."""
    of = realize(tx, args[0])
    real = of.as_python_object()
    if not issubclass(of.python_type(), property) or real is NotImplemented:
        raise Unsupported("descriptor", f"an accessor of {of.describe()} is called by name")
    return _bind_property(real, tx, of, name, args[1:])
