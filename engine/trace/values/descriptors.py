"""``property``, ``classmethod`` and ``staticmethod`` objects taken by themselves: their parts, and what binding them by name gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.ir.origin import Attr, Origin
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, HeldValue, Value, force, is_none
from engine.trace.values.classes import class_origin, raise_accessor_missing
from engine.trace.values.methods import BoundMethod, MethodOf
from engine.trace.values.wrap import is_literal, wraps

if TYPE_CHECKING:
    from engine.trace.state import Tracer

_BINDING = ("__get__", "__set__", "__delete__")
_PARTS = ("fget", "fset", "fdel", "__func__", "__wrapped__")


class DescriptorObject(HeldValue):
    """One that exists: it does not change what it is made of."""

    def truth(self, tx: Tracer) -> bool:
        return True

    def key(self, tx: Tracer) -> Any:
        return tx.keyed_by_identity(self)

    def part(self, tx: Tracer, name: str) -> Value:
        """A function that it is made of, or None."""
        assert self.origin is not None
        return force(tx, tx.wrap(getattr(self.held, name), Attr(self.origin, name)))

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name in _BINDING and hasattr(self.held, name):
            return MethodOf(self, name)
        if not hasattr(self.held, name):
            text = f"'{type(self.held).__name__}' object has no attribute '{name}'"
            return tx.raise_error(AttributeError, text)  # type: ignore[no-any-return]
        if name in _PARTS or is_literal(getattr(self.held, name)):
            return self.part(tx, name)
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name in _BINDING and not kwargs:
            return use_descriptor(tx, self, name, args)
        return super().call_method(tx, name, args, kwargs)

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if isinstance(self.held, staticmethod):
            return self.part(tx, "__func__").call(tx, args, kwargs)
        return super().call(tx, args, kwargs)


def use_descriptor(tx: Tracer, of: Any, name: str, args: list[Value]) -> Value:
    """``of.__get__(instance, owner)``, ``of.__set__(instance, value)``, ``of.__delete__(instance)``."""
    held = of.held
    instance, *rest = [force(tx, a) for a in args]
    if isinstance(held, property):
        if name == "__get__" and is_none(instance):
            return of  # type: ignore[no-any-return]
        which, word = {"__get__": ("fget", "getter"), "__set__": ("fset", "setter")}.get(name, ("fdel", "deleter"))
        if getattr(held, which) is None:
            raise_accessor_missing(tx, held, instance.type(), word)
        done = of.part(tx, which).call(tx, [instance, *(rest if name == "__set__" else [])], {})
        return force(tx, done) if name == "__get__" else NONE
    if isinstance(held, staticmethod):
        return of.part(tx, "__func__")  # type: ignore[no-any-return]
    owner = rest[0] if rest and not is_none(rest[0]) else tx.wrap(instance.type(), class_origin(instance.type()))
    if hasattr(type(held.__func__), "__get__") and not hasattr(held.__func__, "__code__"):
        raise Unsupported("unknown-call", "classmethod.__get__() of what is itself a descriptor")
    return BoundMethod(owner, of.part(tx, "__func__"))


@wraps(property, classmethod, staticmethod)
def _descriptor(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_type(real, origin, f"the {type(real).__name__} object itself was used")
    return DescriptorObject(real, origin)
