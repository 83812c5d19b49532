"""Attributes of classes: MRO lookup, writes of traced code, and guards."""

from __future__ import annotations

import builtins
import types
from typing import Any, NamedTuple, NoReturn

from engine.ir.guards.python_values import HasAttrGuard, IdMatch
from engine.ir.introspection import python_objects
from engine.ir.introspection.python_objects import is_heap_type
from engine.ir.sources.attributes import AttrSource, InstanceDictGetSource
from engine.ir.sources.base import MISSING, Source
from engine.ir.sources.roots import ConstantSource
from engine.trace.annotations import Tracer
from engine.trace.frame import is_trusted_module
from engine.trace.variables.base import Args, Kwargs, Variable, realize
from engine.trace.variables.slotted_type import SlottedType

ABSTRACT_CLASS_FLAG = 1 << 20
"""Py_TPFLAGS_IS_ABSTRACT: set for classes with unimplemented abstract methods."""


class ClassEntry(NamedTuple):
    """The raw entry of a class attribute, and the class of the MRO that defines it."""

    owner: builtins.type
    raw: Any

    @property
    def function(self) -> types.FunctionType | None:
        """The Python function behind a method of any kind; None for anything else."""
        return python_function(getattr(self.raw, "__func__", self.raw))

    @property
    def is_slot(self) -> bool:
        """True for a descriptor of ``__slots__``, or a member of a C class."""
        return is_slot(self.raw)

    @property
    def is_stored_outside_dict(self) -> bool:
        """True if C code stores the attribute outside ``__dict__`` of the instance."""
        return self.owner is object or self.is_slot or isinstance(self.raw, types.GetSetDescriptorType)

    @property
    def is_c_method(self) -> bool:
        """True for a method that C code implements."""
        return isinstance(self.raw, (types.MethodDescriptorType, types.WrapperDescriptorType))


def is_slot(raw: Any) -> bool:
    """Return True if a class entry is a descriptor of ``__slots__``, or a member of a C class."""
    return isinstance(raw, types.MemberDescriptorType)


def python_function(raw: Any) -> types.FunctionType | None:
    """Return the class entry if it is a Python function, else None."""
    return raw if isinstance(raw, types.FunctionType) else None


def find_in_class(cls: builtins.type, name: str) -> ClassEntry | None:
    """Return the entry of an attribute in the MRO; None if undefined.

    Class attributes that traced code wrote or deleted are included.
    """
    for base in cls.__mro__:
        if CLASS_ATTR_WRITES and (base, name) in CLASS_ATTR_WRITES:
            written = CLASS_ATTR_WRITES[base, name]
            if written is not None:
                return ClassEntry(base, written)
        elif name in base.__dict__:
            return ClassEntry(base, base.__dict__[name])
    return None


def find_python_method(cls: builtins.type, name: str) -> ClassEntry | None:
    """Return the entry of a method that Python code defines, or None."""
    entry = find_in_class(cls, name)
    return None if entry is None or python_function(entry.raw) is None else entry


def wrap_entry(tx: Tracer, entry: ClassEntry, name: str) -> Variable:
    """Return the variable of a class entry, not bound to anything."""
    return tx.wrap(entry.raw, AttrSource(class_source(entry.owner), name))


def call_python_method(
    tx: Tracer, cls: builtins.type, name: str, args: Args, kwargs: Kwargs | None = None
) -> Variable | None:
    """Call a method that Python code defines, with ``self`` in ``args``.

    None without such a method.
    """
    entry = find_python_method(cls, name)
    return None if entry is None else realize(tx, wrap_entry(tx, entry, name).call(tx, args, kwargs or {}))


def call_python_new(tx: Tracer, of: Variable, args: Args, kwargs: Kwargs) -> Variable | None:
    """Call ``__new__`` of a class; return None if Python code does not define it."""
    new_method = find_in_class(of.as_python_object(), "__new__")
    if new_method is None or new_method.function is None:
        return None
    new = wrap_entry(tx, ClassEntry(new_method.owner, new_method.function), "__new__")
    return realize(tx, new.call(tx, [of, *args], kwargs))


def has_user_method(cls: builtins.type, name: str) -> bool:
    """Return True if a class other than ``object`` defines the name."""
    entry = find_in_class(cls, name)
    return entry is not None and entry.owner is not object


class ClassAttrWrite(metaclass=SlottedType):
    """Entry of a class attribute that traced code wrote; holds the written variable."""

    variable: Variable


CLASS_ATTR_WRITES: dict[tuple[builtins.type, str], ClassAttrWrite | None] = {}
"""Class attributes that the traced frame wrote; None for deleted ones.

Global state: only one frame is traced at a time.
"""


def is_data_descriptor(attribute: Any) -> bool:
    """Return True for a data descriptor, which takes precedence over the instance dict."""
    return hasattr(type(attribute), "__set__") or hasattr(type(attribute), "__delete__")


def overrides_instance_dict(attribute: Any) -> bool:
    """Return True if a read calls the descriptor before it reads the instance dict.

    A data descriptor without ``__get__`` does not affect reads.
    """
    return is_data_descriptor(attribute) and hasattr(type(attribute), "__get__")


def class_source(cls: builtins.type) -> Source:
    """Return the source of a class whose identity is already guarded."""
    return ConstantSource(cls, cls.__qualname__)


def guard_not_shadowed_in_mro(tx: Tracer, cls: builtins.type, base: builtins.type, name: str) -> None:
    """Guard that no class before ``base`` in the MRO gets an entry named ``name``."""
    for passed in cls.__mro__:
        if passed is base:
            return
        if (
            passed not in tx.objects.new_classes
            and name not in passed.__dict__
            and not is_trusted_module(passed.__module__)
        ):
            why = f"{base.__name__}'s {name!r} was used, which one of {passed.__name__} would hide"
            tx.guard(IdMatch, InstanceDictGetSource(class_source(passed), name), MISSING, why=why)


def guard_no_class_attribute(tx: Tracer, cls: builtins.type, name: str) -> None:
    """Guard that neither a class nor its bases get an attribute named ``name``."""
    if (
        cls not in tx.objects.new_classes
        and not is_trusted_module(cls.__module__)
        and not python_objects.has_static_attribute(cls, name)
    ):
        tx.guard(HasAttrGuard, class_source(cls), name, False, why=f"it has no attribute {name!r}")


def raise_missing_accessor(tx: Tracer, cls: builtins.type, accessor: str) -> NoReturn:
    """Raise Python's AttributeError for a property without a getter, setter or deleter."""
    tx.raise_error(AttributeError, f"a property of '{cls.__qualname__}' object has no {accessor}", is_exact=False)


_NO_INSTANTIATION_FLAG = 1 << 7
"""Py_TPFLAGS_DISALLOW_INSTANTIATION."""


def _is_constructed_in_c(base: builtins.type) -> bool:
    """Return True if C code constructs instances of a class that is a heap type."""
    return isinstance(vars(base).get("__new__"), types.BuiltinFunctionType) or bool(
        base.__flags__ & _NO_INSTANTIATION_FLAG
    )


def is_plain_class(cls: builtins.type) -> bool:
    """Return True if instances hold only attributes.

    Then each base is ``object`` or a class that Python code created.
    """
    return all(
        base is object or (is_heap_type(base) and base.__module__ != "_ctypes" and not _is_constructed_in_c(base))
        for base in cls.__mro__
    ) and (cls.__basicsize__ <= 64 + 8 * 32)
