"""Special methods, attributes and instantiation that a metaclass defines."""

from __future__ import annotations

import builtins
import types
from typing import Any

from engine.trace.annotations import ClassVariable, Tracer
from engine.trace.frame import is_trusted_module
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.callables.methods import BoundMethodVariable
from engine.trace.variables.objects.attribute_binding import bind_attribute
from engine.trace.variables.objects.class_lookup import find_in_class, find_python_method, wrap_entry
from engine.trace.variables.objects.constructor_registry import construct


def metaclass_method(tx: Tracer, of: ClassVariable, name: str) -> Variable | None:
    """Return a Python method of the metaclass, bound to the class; None if there is none."""
    entry = find_python_method(type(of.real_object), name)
    if entry is None or is_trusted_module(entry.owner.__module__):
        return None
    return BoundMethodVariable(of, wrap_entry(tx, entry, name), name=name)


def metaclass_attribute(tx: Tracer, of: ClassVariable, name: str) -> Variable | None:
    """Return an attribute from the metaclass, for a name that the class itself lacks.

    Reads the attributes of the metaclass, then calls its ``__getattr__``; None if there is neither.
    """
    meta = type(of.real_object)
    entry = find_in_class(meta, name)
    if entry is not None and not is_trusted_module(entry.owner.__module__):
        return bind_attribute(tx, meta, entry.owner, name, entry.raw, of)
    getter = metaclass_method(tx, of, "__getattr__")
    if entry is None and getter is not None:
        return getter.call(tx, [ConstantVariable(name)], {})
    return None


class TypeCallVariable(Variable):
    """``super().__call__`` in a metaclass: creates an instance as ``type.__call__`` does."""

    cls = types.MethodWrapperType
    class_variable: Variable

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        return construct(tx, self.class_variable, args, kwargs, by_type=True)


def super_in_metaclass(tx: Tracer, start: builtins.type, of: Variable, name: str) -> Variable | None:
    """Evaluate ``super().name`` in a metaclass method.

    Return None if ``start`` is not a metaclass of the class.
    """
    meta: Any = of.python_type()
    mro = meta.__mro__
    if start not in mro or start in of.as_class().__mro__:
        return None
    for base in mro[mro.index(start) + 1 :]:
        if name not in base.__dict__:
            continue
        if base is type and name == "__call__":
            return TypeCallVariable(of)
        return bind_attribute(tx, meta, base, name, base.__dict__[name], of)
    return None


def call_metaclass_method(tx: Tracer, of: ClassVariable, name: str, args: Args) -> Variable | None:
    """Call a special method of the metaclass; return None if Python code defines none."""
    method = metaclass_method(tx, of, name)
    return None if method is None else realize(tx, method.call(tx, args, {}))
