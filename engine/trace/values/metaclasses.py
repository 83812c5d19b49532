"""What a class's own metaclass defines: special methods of classes as objects, and the calling of classes."""

from __future__ import annotations

import builtins
import types
from typing import TYPE_CHECKING, Any

from engine.ir.origin import Attr
from engine.trace.values.base import Const, Value, force
from engine.trace.values.classes import ClassValue, bind_attribute, class_origin, construct, find_in_class
from engine.trace.values.methods import BoundMethod

if TYPE_CHECKING:
    from engine.trace.state import Tracer


def meta_method(tx: Tracer, of: ClassValue, name: str) -> Value | None:
    """A method that Python code of the class's metaclass defines, bound to the class; None where there is none."""
    from engine.trace.state import is_trusted

    found = find_in_class(type(of.held), name)
    if found is None or is_trusted(found[0].__module__) or not isinstance(found[1], types.FunctionType):
        return None
    return BoundMethod(of, tx.wrap(found[1], Attr(class_origin(found[0]), name)), name=name)


def meta_attribute(tx: Tracer, of: ClassValue, name: str) -> Value | None:
    """What the metaclass gives for an attribute that the class itself lacks: its own attributes, then its ``__getattr__``."""
    from engine.trace.state import is_trusted

    meta = type(of.held)
    found = find_in_class(meta, name)
    if found is not None and not is_trusted(found[0].__module__):
        return bind_attribute(tx, meta, found[0], name, found[1], of)
    getter = meta_method(tx, of, "__getattr__")
    if found is None and getter is not None:
        return getter.call(tx, [Const(name)], {})
    return None


class Instantiation(Value):
    """``super().__call__`` inside a metaclass: makes an instance as ``type`` does."""

    def __init__(self, of: ClassValue) -> None:
        self.of = of

    def type(self) -> builtins.type:
        return types.MethodWrapperType

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return construct(tx, self.of, args, kwargs, by_type=True)


def super_of_class(tx: Tracer, start: builtins.type, of: ClassValue, name: str) -> Value | None:
    """``super().name`` inside a metaclass's method; None where ``start`` is no metaclass of the class."""
    meta: Any = type(of.held)
    mro = meta.__mro__
    if start not in mro or start in of.held.__mro__:
        return None
    for base in mro[mro.index(start) + 1 :]:
        if name not in base.__dict__:
            continue
        if base is type and name == "__call__":
            return Instantiation(of)
        return bind_attribute(tx, type(of.held), base, name, base.__dict__[name], of)
    return None


def ask(tx: Tracer, of: ClassValue, name: str, args: list[Value]) -> Value | None:
    """Call a special method of the metaclass; None where Python code defines none."""
    method = meta_method(tx, of, name)
    return None if method is None else force(tx, method.call(tx, args, {}))
