"""Variables of classes and generic aliases."""

from __future__ import annotations

import enum
import operator
import types
import typing
from typing import Any

import torch

from engine.ir.guards.python_values import LengthMatch
from engine.ir.introspection.python_objects import is_heap_type
from engine.ir.sources.attributes import AttrSource, MethodResultSource
from engine.ir.sources.containers import GetItemSource
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.frame import is_trusted_module
from engine.trace.variables.base import (
    Args,
    ConstantVariable,
    FixedObjectVariable,
    Kwargs,
    UserErrors,
    Variable,
    realize,
)
from engine.trace.variables.builder import guarded_builder, is_literal, register_builder_if, register_subclass_builder
from engine.trace.variables.callable_registry import find_rule
from engine.trace.variables.callables.builtin_functions import BuiltinVariable
from engine.trace.variables.callables.methods import BuiltinMethodVariable, check_arity
from engine.trace.variables.callables.reconstruct_calls import CallExpressionVariable
from engine.trace.variables.objects.attribute_binding import class_attribute
from engine.trace.variables.objects.class_lookup import (
    CLASS_ATTR_WRITES,
    ClassAttrWrite,
    class_source,
    find_in_class,
    guard_no_class_attribute,
    is_data_descriptor,
)
from engine.trace.variables.objects.constructor_registry import construct
from engine.trace.variables.objects.metaclasses import call_metaclass_method, metaclass_attribute

LEGACY_TENSOR_METACLASS: Any = type(torch.FloatTensor)
"""Metaclass of the legacy tensor types, such as ``torch.FloatTensor``."""

_DTYPES: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


class ClassVariable(FixedObjectVariable):
    """A Python class."""

    real_object: type

    is_copied_by_reference = True

    def describe(self) -> str:
        return f"class {self.real_object.__qualname__}"

    def as_class(self) -> Any:
        return self.real_object

    def is_truthy(self, tx: Tracer) -> bool:
        result = call_metaclass_method(tx, self, "__bool__", []) or call_metaclass_method(tx, self, "__len__", [])
        return True if result is None else result.is_truthy(tx)

    def as_node_arg(self, tx: Tracer) -> tuple[Any, Any]:
        # A class can name a dtype, as in ``x.to(float)`` and ``x.type(torch.HalfTensor)``.
        named: Any = _DTYPES.get(self.real_object)
        if issubclass(self.python_type(), LEGACY_TENSOR_METACLASS):
            named = f"{self.real_object.__module__}.{self.real_object.__name__}"
        return super().as_node_arg(tx) if named is None else (named, named)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in ("__name__", "__qualname__", "__module__", "__doc__", "__mro__", "__bases__"):
            return tx.from_python(getattr(self.real_object, name))
        if (
            name == "__dict__"
            and self.real_object not in tx.objects.new_classes
            and not any(of is self.real_object for of, _ in CLASS_ATTR_WRITES)
        ):
            return tx.wrap(self.real_object.__dict__, AttrSource(class_source(self.real_object), name))
        if name == "__dict__":
            raise self.unsupported_attribute("reading", name)
        if name == "__subclasses__" and find_in_class(self.real_object, name) is None:
            return BuiltinMethodVariable(self, name)
        if issubclass(self.real_object, enum.Enum) and name in self.real_object.__members__:
            return ConstantVariable(self.real_object.__members__[name])
        if is_trusted_module(self.real_object.__module__) and hasattr(self.real_object, name):
            tx.guards.record_class_attribute(tx, self.real_object, name)
            attribute = getattr(self.real_object, name)
            return ConstantVariable(attribute) if is_literal(attribute) else tx.wrap_static(attribute)
        own_attribute = class_attribute(tx, self.real_object, name, None)
        if own_attribute is not None:
            return own_attribute
        by_meta = metaclass_attribute(tx, self, name)
        if by_meta is not None:
            return by_meta
        if hasattr(self.real_object, name):
            attribute = getattr(self.real_object, name)
            if callable(attribute):
                return tx.wrap_static(attribute)
            return tx.wrap(attribute, AttrSource(class_source(self.real_object), name))
        if issubclass(self.real_object, enum.Enum):  # the message differs between Python versions
            with UserErrors(tx, AttributeError):
                getattr(self.real_object, name)
        guard_no_class_attribute(tx, self.real_object, name)
        return tx.raise_error(AttributeError, f"type object '{self.real_object.__name__}' has no attribute '{name}'")

    def set_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        self._record_attr_write(tx, name, value)

    def del_attr(self, tx: Tracer, name: str) -> None:
        attribute = find_in_class(self.real_object, name)
        if attribute is None or attribute.owner is not self.real_object:
            tx.raise_error(AttributeError, name)
        self._record_attr_write(tx, name, None)

    def _record_attr_write(self, tx: Tracer, name: str, value: Variable | None) -> None:
        """Record the write or deletion of an attribute of an existing class.

        Later traced reads see it; generated code applies it after the graph.
        """
        real = self.real_object
        if not is_heap_type(real):
            tx.raise_type_error(f"cannot set {name!r} attribute of immutable type '{real.__name__}'")
        plain = type(real).__setattr__ is type.__setattr__ and type(real).__delattr__ is type.__delattr__
        attribute = find_in_class(type(real), name)
        if (
            not plain
            or is_trusted_module(real.__module__)
            or name.startswith("__")
            or (attribute and is_data_descriptor(attribute.raw))
        ):
            raise self.unsupported_attribute("setting", name)
        key = (real, name)
        CLASS_ATTR_WRITES[key] = None if value is None else ClassAttrWrite(value)
        args: Args = [self, ConstantVariable(name)]
        if value is None:
            write, done = CallExpressionVariable(delattr, args), "deleted"
        else:
            write, done = CallExpressionVariable(setattr, [*args, value]), "set"
        tx.side_effects.record_side_effect(write, f"{real.__name__}.{name} is {done}")

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name == "__subclasses__" and not args and not kwargs:
            return self._subclasses(tx)
        return super().call_method(tx, name, args, kwargs)

    def _subclasses(self, tx: Tracer) -> Variable:
        """Return the current subclasses in creation order; guard on their number."""
        if tx.objects.new_classes:
            raise self.unsupported("__subclasses__() of a class that traced code may have subclassed", "class-creation")
        subclasses: list[type] = type.__subclasses__(self.real_object)
        result = MethodResultSource(class_source(self.real_object), "__subclasses__")
        tx.guard(LengthMatch, result, len(subclasses), why=f"the subclasses of {self.real_object.__name__} were read")
        return tx.from_python([tx.wrap(c, GetItemSource(result, n)) for n, c in enumerate(subclasses)])

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        if issubclass(self.real_object, enum.Enum):
            return tx.fold_constant(lambda: self.real_object[key.as_python_constant(tx)])  # type: ignore[index]
        result = call_metaclass_method(tx, self, "__getitem__", [key])
        if result is not None:
            return result
        entry = find_in_class(self.real_object, "__class_getitem__")
        if entry is not None and entry.function is not None and entry.owner.__module__ != "typing":
            return self.call_method(tx, "__class_getitem__", [key], {})
        if hasattr(self.real_object, "__class_getitem__") or self.real_object in (type, list, dict, tuple, set):
            return _parametrize_generic(tx, self, key)
        return super().get_item(tx, key)

    def get_iterator(self, tx: Tracer) -> Variable:
        if issubclass(self.real_object, enum.Enum):
            return tx.from_python(iter(tuple(self.real_object)))
        return call_metaclass_method(tx, self, "__iter__", []) or super().get_iterator(tx)

    def length(self, tx: Tracer) -> Variable:
        if issubclass(self.real_object, enum.Enum):
            return ConstantVariable(len(self.real_object))
        return call_metaclass_method(tx, self, "__len__", []) or super().length(tx)

    def contains(self, tx: Tracer, item: Variable) -> bool:
        result = call_metaclass_method(tx, self, "__contains__", [item])
        if result is not None:
            return result.is_truthy(tx)
        return bool(
            tx.fold_constant(operator.contains, self.real_object, item.as_python_constant(tx)).as_python_constant(tx)
        )

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        rule = find_rule(self.real_object)
        if rule is not None:
            check_arity(tx, self.real_object, args, kwargs)
            return rule(tx, args, kwargs)
        return construct(tx, self, args, kwargs)


register_subclass_builder(1, type)(guarded_builder(ClassVariable, "the class {0.__qualname__} was used"))


def _is_generic_alias(real: Any) -> bool:
    return isinstance(real, (types.GenericAlias, types.UnionType)) or (
        type(real).__module__ == "typing" and not isinstance(real, typing.Generic)
    )


class GenericAliasVariable(BuiltinVariable):
    """A generic alias or a union, such as ``list[int]`` or ``int | str``."""

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        inner = getattr(self.real_object, "__origin__", None)
        if inner is None:
            raise Unsupported("unknown-call", f"{self.real_object!r} is called")
        return tx.wrap_static(inner).call(tx, args, kwargs)

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        return _parametrize_generic(tx, self, key)


register_builder_if(40, _is_generic_alias)(guarded_builder(GenericAliasVariable, "it was used as a type"))


def _parametrize_generic(tx: Tracer, of: ClassVariable | GenericAliasVariable, key: Variable) -> Variable:
    """Evaluate ``of[key]`` if ``key`` is constant; otherwise return ``of``.

    ``of`` is also returned if a class created while tracing is involved.
    """
    parts = [of, key, *(realize(tx, item) for item in key.argument_items())]
    if any(part.as_class() in tx.objects.new_classes for part in parts) or not tx.is_python_constant(key):
        return of
    with UserErrors(tx, TypeError):
        return tx.wrap_static(of.real_object[key.as_python_constant(tx)])  # type: ignore[index]
