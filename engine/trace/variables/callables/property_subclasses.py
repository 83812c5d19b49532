"""Instances of user-defined subclasses of ``property``.

They hold a getter and a setter, and may override ``__get__`` and ``__set__``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.ir.sources.base import Source
from engine.trace.exc import Unsupported
from engine.trace.variables.base import NONE, Args, Kwargs, Variable, is_none, realize
from engine.trace.variables.builder import register_builder_if
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.objects.class_lookup import raise_missing_accessor
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable

if TYPE_CHECKING:
    from engine.trace.tracer import Tracer


class PropertySubclassVariable(UserDefinedObjectVariable):
    """An external instance of a subclass of ``property``."""

    __slots__ = ()


def _is_property_subclass(real: object) -> bool:
    return isinstance(real, property) and type(real) is not property


@register_builder_if(55, _is_property_subclass)
def _property(tx: Tracer, real: Any, origin: Source) -> Variable:
    tx.guard_type(real, origin, "its accessors were used")
    return PropertySubclassVariable(type(real), origin, real)


def _find_accessor(tx: Tracer, given: Variable, of: Variable, which: str, word: str) -> Variable:
    """Return the accessor function of a property, for a call such as ``super().__get__``."""
    descriptor = realize(tx, given)
    if not isinstance(descriptor, PropertySubclassVariable):
        raise Unsupported("descriptor", f"an accessor of {descriptor.describe()} is called by name")
    function = realize(tx, descriptor.get_attr(tx, which))
    if is_none(function):
        raise_missing_accessor(tx, descriptor.as_python_object(), of.python_type(), word)
    return function


@register_rule(vars(property)["__get__"])
def _get(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    of = realize(tx, args[1])
    return args[0] if is_none(of) else _find_accessor(tx, args[0], of, "fget", "getter").call(tx, [of], {})


@register_rule(vars(property)["__set__"])
def _set(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    of = realize(tx, args[1])
    _find_accessor(tx, args[0], of, "fset", "setter").call(tx, [of, args[2]], {})
    return NONE


@register_rule(vars(property)["__delete__"])
def _delete(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    of = realize(tx, args[1])
    _find_accessor(tx, args[0], of, "fdel", "deleter").call(tx, [of], {})
    return NONE
