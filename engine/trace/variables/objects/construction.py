"""Construct instances: named tuples, enums, and objects by ``__new__`` and ``__init__``."""

from __future__ import annotations

import builtins
import enum
from typing import Any

from engine.ir.introspection.python_objects import is_dtensor_placement_class
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.operators.arithmetic import fold_constant_call
from engine.trace.variables.base import Args, Kwargs, Variable
from engine.trace.variables.builder import is_literal
from engine.trace.variables.containers.builtin_subclasses import builtin_base_of, call_builtin_new
from engine.trace.variables.containers.sequences import TupleVariable, is_plain_namedtuple
from engine.trace.variables.objects.class_lookup import (
    ABSTRACT_CLASS_FLAG,
    call_python_method,
    call_python_new,
    find_in_class,
    is_plain_class,
)
from engine.trace.variables.objects.constructor_registry import (
    METACLASS_CALL_ORDER,
    c_class_constructor_of,
    register_constructor,
)
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable


@register_constructor(20, lambda cls: issubclass(cls, enum.Enum) or is_dtensor_placement_class(cls))
def _construct_constant(tx: Tracer, of: Variable, args: Args, kwargs: Kwargs) -> Variable:
    return fold_constant_call(tx, of.as_python_object(), args, kwargs)


def _is_typed_dict(cls: Any) -> bool:
    """Return True for a TypedDict class of typing or typing_extensions."""
    called = find_in_class(type(cls), "__call__")
    return called is not None and called.raw is dict


@register_constructor(21, _is_typed_dict)
def _construct_typed_dict(tx: Tracer, of: Variable, args: Args, kwargs: Kwargs) -> Variable:
    return tx.wrap_static(dict).call(tx, args, kwargs)


@register_constructor(22, lambda cls: issubclass(cls, tuple) and hasattr(cls, "_make") and is_plain_namedtuple(cls))
def _construct_namedtuple(tx: Tracer, of: Variable, args: Args, kwargs: Kwargs) -> Variable:
    cls = of.as_python_object()
    defining_class = next(c for c in cls.__mro__ if "_fields" in c.__dict__)
    if any("__new__" in c.__dict__ for c in cls.__mro__[: cls.__mro__.index(defining_class)]):
        raise Unsupported("object-creation", f"{cls.__qualname__} is created")
    bound: dict[str, Variable] = dict(zip(cls._fields, args, strict=False))
    if len(args) > len(cls._fields) or set(kwargs) - set(cls._fields) or set(kwargs) & set(bound):
        tx.fold_constant(cls.__new__, cls, *[None] * len(args), **dict.fromkeys(kwargs))
    bound.update(kwargs)
    for name, default in cls._field_defaults.items():
        if name not in bound:
            bound[name] = tx.from_python(default) if is_literal(default) else tx.wrap_static(default)
    if len(bound) < len(cls._fields):
        tx.fold_constant(cls.__new__, cls, *[None] * len(args), **dict.fromkeys(kwargs))
    return TupleVariable([bound[f] for f in cls._fields], cls)


@register_constructor(23, lambda cls: cls.__module__ == "torch.return_types")
def _construct_structseq(tx: Tracer, of: Variable, args: Args, kwargs: Kwargs) -> Variable:
    """Construct a ``torch.return_types`` instance, an operator result with named fields."""
    cls = of.as_python_object()
    if len(args) != 1 or kwargs or len(items := tx.unpack_iterable(args[0])) != cls.n_sequence_fields:
        raise Unsupported("object-creation", f"{cls.__module__}.{cls.__qualname__} is created")
    return TupleVariable(items, cls)


def _has_metaclass_call(cls: Any) -> bool:
    return type(cls).__call__ is not type.__call__ and type(cls).__module__ not in ("abc", "typing")


@register_constructor(METACLASS_CALL_ORDER, _has_metaclass_call)
def _call_metaclass(tx: Tracer, of: Variable, args: Args, kwargs: Kwargs) -> Variable:
    cls = of.as_python_object()
    instance = call_python_method(tx, type(cls), "__call__", [of, *args], kwargs)
    if instance is None:
        raise Unsupported("metaclass", f"{cls.__name__} is created")
    return instance


@register_constructor(100, lambda cls: True)
def construct_object(tx: Tracer, of: Variable, args: Args, kwargs: Kwargs) -> Variable:
    """Run ``__new__`` and ``__init__`` of a class."""
    cls = of.as_python_object()
    by_class = c_class_constructor_of(cls)
    if by_class is not None:
        instance = by_class(tx, cls, args, kwargs)
        init = find_in_class(instance.python_type(), "__init__")
        return instance if init is None or init.owner is object else _run_init(tx, cls, instance, args, kwargs)
    base = builtin_base_of(cls)
    if base is not None and cls.__new__ is base.__new__ and not cls.__flags__ & ABSTRACT_CLASS_FLAG:
        built = call_builtin_new(tx, cls, base, args, kwargs)
        return _run_init(tx, cls, built, args, kwargs)
    if is_plain_class(cls) and cls.__flags__ & ABSTRACT_CLASS_FLAG:
        tx.raise_error(TypeError, f"Can't instantiate abstract class {cls.__name__}", is_exact=False)
    if (not is_plain_class(cls) and base is None) or not cls.__module__:
        raise Unsupported("object-creation", f"{cls.__module__}.{cls.__qualname__} is created")
    new_entry = find_in_class(cls, "__new__")
    if new_entry is not None and new_entry.owner is not object and new_entry.owner.__module__ != "typing":
        by_new = call_python_new(tx, of, args, kwargs)
        if by_new is None:
            raise Unsupported("object-creation", f"{cls.__qualname__} is created")
        instance = by_new
        if not (instance.is_user_object and issubclass(instance.python_type(), cls)):
            return instance
    else:
        instance = UserDefinedObjectVariable(cls, None, NotImplemented)
    init = find_in_class(instance.python_type(), "__init__")
    if init is not None and init.owner is not object:
        return _run_init(tx, cls, instance, args, kwargs)
    if (args or kwargs) and (new_entry is None or new_entry.owner is object):
        tx.raise_type_error(f"{cls.__name__}() takes no arguments")
    return instance


def _run_init(tx: Tracer, cls: builtins.type, instance: Variable, args: Args, kwargs: Kwargs) -> Variable:
    """Call ``__init__`` on a new instance and return the instance."""
    if call_python_method(tx, instance.python_type(), "__init__", [instance, *args], kwargs) is not None:
        return instance
    if hasattr(instance, "call_builtin_method"):
        instance.call_builtin_method(tx, "__init__", args, kwargs)
    else:
        raise Unsupported("object-creation", f"{cls.__qualname__} is created")
    return instance
