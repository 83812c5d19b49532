"""Bind class entries to an instance or a class, as Python's descriptor protocol does."""

from __future__ import annotations

import builtins
import functools
import inspect
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.ir.guards.python_values import HasAttrGuard
from engine.ir.register_once import register_once
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.ir.sources.containers import GetItemSource
from engine.ir.sources.roots import ConstantSource
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.frame import is_trusted_module
from engine.trace.variables.base import NONE, ConstantVariable, Variable, realize
from engine.trace.variables.builder import is_literal
from engine.trace.variables.callables.methods import BoundMethodVariable
from engine.trace.variables.objects.class_lookup import (
    CLASS_ATTR_WRITES,
    ClassAttrWrite,
    class_source,
    find_in_class,
    find_python_method,
    guard_not_shadowed_in_mro,
    is_data_descriptor,
    raise_missing_accessor,
)


@dataclass(frozen=True, slots=True)
class AttributeRead:
    """A read that found the raw entry ``raw`` of the class ``base``.

    ``instance`` is None for a read through the class ``cls``.
    """

    cls: builtins.type
    base: builtins.type
    name: str
    raw: Any
    instance: Variable | None

    @property
    def source(self) -> Source:
        """The source of the entry, as an attribute of the class that defines it."""
        return AttrSource(class_source(self.base), self.name)

    @property
    def dict_source(self) -> Source:
        """The source of the raw entry: a read through the class would call its ``__get__``."""
        return GetItemSource(AttrSource(class_source(self.base), "__dict__"), self.name)


Binder = Callable[["Tracer", AttributeRead], Variable]
_BINDERS: dict[type, Binder] = {}
"""Binders by type of the class entry. They also apply to subclasses of the type."""


def binds(*entry_types: type) -> Callable[[Binder], Binder]:
    """Register the binder of class entries of these types."""
    return register_once(_BINDERS, entry_types, "a binder")


def _find_binder(entry_type: type) -> Binder:
    for base in entry_type.__mro__:
        if base in _BINDERS:
            return _BINDERS[base]
    return _bind_by_protocol


def class_attribute(
    tx: Tracer, cls: builtins.type, name: str, instance: Variable | None, start: builtins.type | None = None
) -> Variable | None:
    """Return ``instance.name`` or ``cls.name`` as the classes define it; None if undefined.

    ``start``: search only the part of the MRO after this class, as ``super`` does.
    """
    mro = cls.__mro__ if start is None else cls.__mro__[cls.__mro__.index(start) + 1 :]
    for base in mro:
        if CLASS_ATTR_WRITES and (base, name) in CLASS_ATTR_WRITES:
            written = CLASS_ATTR_WRITES[base, name]
            if written is not None:
                return bind_attribute(tx, cls, base, name, written, instance)
        elif name in base.__dict__:
            return bind_attribute(tx, cls, base, name, base.__dict__[name], instance)
    return None


def enum_attribute(tx: Tracer, member: ConstantVariable, name: str) -> Variable | None:
    """Return an attribute that an enum class of the user or its member defines, else None."""
    cls: Any = member.python_type()
    attributes = vars(member.value)
    entry = find_in_class(cls, name)
    if entry is not None and not is_trusted_module(entry.owner.__module__) and name not in cls.__members__:
        if name not in attributes or is_data_descriptor(entry.raw):
            return class_attribute(tx, cls, name, member)
    elif name == "value":
        name = "_value_"
    if name not in attributes or (name.startswith("_") and is_literal(attributes[name])):
        return None
    return tx.wrap(attributes[name], AttrSource(member.source or ConstantSource(member.value, str(member.value)), name))


def bind_attribute(
    tx: Tracer, cls: builtins.type, base: builtins.type, name: str, attribute: Any, instance: Variable | None
) -> Variable:
    """Bind a raw class entry that is read through an instance, or through the class.

    ``instance`` is None for a read through the class.
    """
    guard_not_shadowed_in_mro(tx, cls, base, name)
    if base in tx.objects.new_classes and is_literal(attribute):  # each call creates its own class
        return ConstantVariable(attribute)
    return _find_binder(type(attribute))(tx, AttributeRead(cls, base, name, attribute, instance))


@binds(ClassAttrWrite)
def _bind_class_attr_write(tx: Tracer, read: AttributeRead) -> Variable:
    value = realize(tx, read.raw.variable)
    if issubclass(value.python_type(), types.FunctionType):
        return value if read.instance is None else BoundMethodVariable(read.instance, value, name=read.name)
    if find_in_class(value.python_type(), "__get__") is not None:
        raise Unsupported("descriptor", f"a descriptor that the traced code set on a class as {read.name!r}")
    return value


@binds(types.BuiltinFunctionType, type)
def _read_entry(tx: Tracer, read: AttributeRead) -> Variable:
    return tx.wrap(read.raw, read.source)


@binds(types.FunctionType, functools._lru_cache_wrapper)
def _bind_function(tx: Tracer, read: AttributeRead) -> Variable:
    function = tx.wrap(read.raw, read.source)
    return function if read.instance is None else BoundMethodVariable(read.instance, function, name=read.name)


@binds(*((functools.partial,) if sys.version_info >= (3, 14) else ()))  # before, a partial is not a method
def _bind_partial(tx: Tracer, read: AttributeRead) -> Variable:
    if _overrides_descriptor_get(read.raw, functools.partial):
        return call_user_descriptor(tx, read)
    return _bind_function(tx, read)


@binds(staticmethod)
def _bind_static_method(tx: Tracer, read: AttributeRead) -> Variable:
    return tx.wrap(read.raw.__func__, read.source)


@binds(classmethod)
def _bind_class_method(tx: Tracer, read: AttributeRead) -> Variable:
    behind = read.raw.__func__
    owner = tx.wrap(read.cls, class_source(read.cls))
    if isinstance(behind, property) and sys.version_info < (3, 13):  # these versions support @classmethod @property
        getter = tx.wrap(behind.fget, AttrSource(AttrSource(read.dict_source, "__func__"), "fget"))
        return realize(tx, getter).call(tx, [owner], {})
    return BoundMethodVariable(owner, tx.wrap(behind, AttrSource(read.source, "__func__")), name=read.name)


@binds(types.ClassMethodDescriptorType)
def _bind_c_class_method(tx: Tracer, read: AttributeRead) -> Variable:
    return tx.wrap_static(read.raw.__get__(None, read.cls))  # read.cls may override it: super() comes here too


@binds(types.MethodDescriptorType, types.WrapperDescriptorType)
def _bind_c_method(tx: Tracer, read: AttributeRead) -> Variable:
    if read.instance is None:
        return _read_entry(tx, read)
    return BoundMethodVariable(read.instance, tx.wrap_static(read.raw))


@binds(property)
def _bind_property(tx: Tracer, read: AttributeRead) -> Variable:
    if _overrides_descriptor_get(read.raw, property):
        return call_user_descriptor(tx, read)
    if read.instance is None:
        return _read_entry(tx, read)
    if read.raw.fget is None:
        raise_missing_accessor(tx, read.cls, "getter")
    return tx.wrap(read.raw.fget, AttrSource(read.source, "fget")).call(tx, [read.instance], {})


@binds(functools.cached_property)
def _bind_cached_property(tx: Tracer, read: AttributeRead) -> Variable:
    if _overrides_descriptor_get(read.raw, functools.cached_property):
        return call_user_descriptor(tx, read)
    if read.instance is None:
        return _read_entry(tx, read)
    value = tx.wrap(read.raw.func, AttrSource(read.source, "func")).call(tx, [read.instance], {})
    read.instance.set_attr(tx, read.name, value)
    return value


def _overrides_descriptor_get(attribute: Any, builtin_type: type) -> bool:
    """Return True for an instance of a property subclass that overrides ``__get__`` in Python."""
    getter = find_python_method(type(attribute), "__get__")
    return getter is not None and getter.owner is not builtin_type


NAMEDTUPLE_FIELD_TYPE = type(vars(inspect.ArgInfo)["args"])
"""Type of the descriptors that read the fields of a namedtuple."""


@binds(NAMEDTUPLE_FIELD_TYPE)
def _bind_namedtuple_field(tx: Tracer, read: AttributeRead) -> Variable:
    contents = getattr(read.instance, "inner", None)  # of an instance of a namedtuple subclass
    if contents is None:
        return _bind_by_protocol(tx, read)
    return contents.get_item(tx, ConstantVariable(read.raw.__reduce__()[1][0]))  # type: ignore[no-any-return]


@binds(types.MemberDescriptorType, types.GetSetDescriptorType)
def _bind_slot(tx: Tracer, read: AttributeRead) -> Variable:
    name, instance = read.name, read.instance
    if instance is None:
        return _read_entry(tx, read)
    real = instance.as_python_object()
    absent = f"'{instance.python_type().__name__}' object has no attribute '{name}'"
    is_new = real is NotImplemented or instance.source is None
    if is_new and name == "__weakref__":
        return NONE
    if instance.source is not None and not is_new and not hasattr(real, name):
        tx.guard(HasAttrGuard, instance.source, name, False, why=f"it has no attribute {name!r}")
        tx.raise_error(AttributeError, absent, is_exact=False)
    if name == "__dict__":
        raise instance.unsupported_attribute("reading", "__dict__")
    if instance.source is None or is_new:
        return tx.raise_error(AttributeError, absent, is_exact=False)
    return tx.wrap(getattr(real, name), AttrSource(instance.source, name))


def _bind_by_protocol(tx: Tracer, read: AttributeRead) -> Variable:
    """Bind an entry of a type without its own binder: call its ``__get__`` if it has one."""
    if not hasattr(type(read.raw), "__get__"):
        return _read_entry(tx, read)
    if find_python_method(type(read.raw), "__get__") is not None:
        return call_user_descriptor(tx, read)
    if read.instance is None:
        return _read_entry(tx, read)
    raise Unsupported("descriptor", f"the descriptor {read.name!r} of {read.cls.__name__}")


def call_user_descriptor(tx: Tracer, read: AttributeRead) -> Variable:
    """Trace ``__get__`` of a descriptor whose class is written in Python."""
    descriptor = realize(tx, tx.wrap(read.raw, read.dict_source))
    owner = tx.wrap(read.cls, class_source(read.cls))
    return descriptor.call_method(tx, "__get__", [read.instance or NONE, owner], {})
