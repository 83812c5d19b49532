"""``property``, ``classmethod`` and ``staticmethod`` objects used as values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.trace.exc import Unsupported
from engine.trace.variables.base import NONE, Args, Kwargs, RealObjectVariable, Variable, is_none, realize
from engine.trace.variables.builder import is_literal, register_builder
from engine.trace.variables.callables.methods import BoundMethodVariable, BuiltinMethodVariable
from engine.trace.variables.objects.class_lookup import class_source, raise_missing_accessor

if TYPE_CHECKING:
    from engine.trace.tracer import Tracer

_BINDING_METHODS = ("__get__", "__set__", "__delete__")
_WRAPPED_FUNCTION_ATTRS = ("fget", "fset", "fdel", "__func__", "__wrapped__")


class ExternalDescriptorVariable(RealObjectVariable):
    """An external descriptor; the functions that it wraps do not change."""

    __slots__ = ()

    def hash_key(self, tx: Tracer) -> Any:
        return tx.objects.as_identity_key(self)

    def wrapped_function(self, tx: Tracer, name: str) -> Variable:
        """Return an attribute such as ``fget``: a wrapped function or None."""
        assert self.source is not None
        return realize(tx, tx.wrap(getattr(self.real_object, name), AttrSource(self.source, name)))

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in _BINDING_METHODS and hasattr(self.real_object, name):
            return BuiltinMethodVariable(self, name)
        if not hasattr(self.real_object, name):
            text = f"'{type(self.real_object).__name__}' object has no attribute '{name}'"
            return tx.raise_error(AttributeError, text)  # type: ignore[no-any-return]
        if name in _WRAPPED_FUNCTION_ATTRS or is_literal(getattr(self.real_object, name)):
            return self.wrapped_function(tx, name)
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name in _BINDING_METHODS and not kwargs:
            return call_descriptor_method(tx, self, name, args)
        return super().call_method(tx, name, args, kwargs)

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        if isinstance(self.real_object, staticmethod):
            return self.wrapped_function(tx, "__func__").call(tx, args, kwargs)
        return super().call(tx, args, kwargs)


def call_descriptor_method(tx: Tracer, of: Any, name: str, args: list[Variable]) -> Variable:
    """Call ``__get__``, ``__set__`` or ``__delete__`` of a descriptor."""
    held = of.real_object
    instance, *rest = [realize(tx, a) for a in args]
    if isinstance(held, property):
        if name == "__get__" and is_none(instance):
            return of  # type: ignore[no-any-return]
        which, word = {"__get__": ("fget", "getter"), "__set__": ("fset", "setter")}.get(name, ("fdel", "deleter"))
        if getattr(held, which) is None:
            raise_missing_accessor(tx, held, instance.python_type(), word)
        done = of.wrapped_function(tx, which).call(tx, [instance, *(rest if name == "__set__" else [])], {})
        return realize(tx, done) if name == "__get__" else NONE
    if isinstance(held, staticmethod):
        return of.wrapped_function(tx, "__func__")  # type: ignore[no-any-return]
    owner = (
        rest[0]
        if rest and not is_none(rest[0])
        else tx.wrap(instance.python_type(), class_source(instance.python_type()))
    )
    if hasattr(type(held.__func__), "__get__") and not hasattr(held.__func__, "__code__"):
        raise Unsupported("descriptor", "classmethod.__get__() of a descriptor")
    return BoundMethodVariable(owner, of.wrapped_function(tx, "__func__"))


@register_builder(property, classmethod, staticmethod)
def _descriptor(tx: Tracer, real: Any, origin: Source) -> Variable:
    tx.guard_type(real, origin, f"the {type(real).__name__} object itself was used")
    return ExternalDescriptorVariable(real, origin)
