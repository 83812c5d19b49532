"""Instances of the user's own kinds of property: objects that hold a getter and a setter, and say themselves how they are read and set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.ir.origin import Origin
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Value, force, is_none
from engine.trace.values.classes import raise_accessor_missing
from engine.trace.values.objects import ObjectValue
from engine.trace.values.rules import special
from engine.trace.values.wrap import wraps_if

if TYPE_CHECKING:
    from engine.trace.state import Tracer


class PropertyValue(ObjectValue):
    """An instance of a subclass of ``property``, from outside."""

    def truth(self, tx: Tracer) -> bool:
        return True


def _is_own_kind(real: object) -> bool:
    return isinstance(real, property) and type(real) is not property


@wraps_if(55, _is_own_kind)
def _property(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_type(real, origin, "its accessors were used")
    return PropertyValue(type(real), origin, real)


def _accessor(tx: Tracer, given: Value, of: Value, which: str, word: str) -> Value:
    """The function behind a property, as ``super().__get__`` and its like call it."""
    descriptor = force(tx, given)
    if not isinstance(descriptor, PropertyValue):
        raise Unsupported("unknown-call", f"an accessor of {descriptor.describe()} is called by name")
    function = force(tx, descriptor.get_attr(tx, which))
    if is_none(function):
        raise_accessor_missing(tx, descriptor.real(), of.type(), word)
    return function


@special(vars(property)["__get__"])
def _get(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    of = force(tx, args[1])
    return args[0] if is_none(of) else _accessor(tx, args[0], of, "fget", "getter").call(tx, [of], {})


@special(vars(property)["__set__"])
def _set(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    of = force(tx, args[1])
    _accessor(tx, args[0], of, "fset", "setter").call(tx, [of, args[2]], {})
    return NONE


@special(vars(property)["__delete__"])
def _delete(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    of = force(tx, args[1])
    _accessor(tx, args[0], of, "fdel", "deleter").call(tx, [of], {})
    return NONE
