"""Stand-ins: real objects that cause the same TypeErrors as traced values."""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Callable
from typing import Any

from engine.ir.introspection.python_objects import is_heap_type

NO_STAND_IN: Any = object()
"""Result of a search for a stand-in that found none."""
_CONTAINER_TYPES: tuple[type, ...] = (
    list,
    tuple,
    dict,
    set,
    frozenset,
    collections.deque,
    collections.OrderedDict,
    collections.defaultdict,
)
SAMPLE_FACTORIES: dict[type, Callable[[], Any]] = {
    **{cls: cls for cls in _CONTAINER_TYPES},
    types.FunctionType: lambda: lambda: None,
    types.MethodType: lambda: types.MethodType(lambda self: None, 1),
    types.GeneratorType: lambda: (n for n in ""),
    types.BuiltinFunctionType: lambda: len,
    types.ModuleType: lambda: types.ModuleType("module"),
}
"""By builtin type, how to create a sample object."""
CONVERSION_METHODS = (
    "__index__",
    "__iter__",
    "__getitem__",
    "__float__",
    "__complex__",
    "__int__",
    "__bytes__",
    "__len__",
)
"""Special methods by which C code converts an argument."""
OPERATORS_NAMING_TYPES_ONLY = frozenset(
    getattr(operator, name)
    for plain in ("sub", "xor", "or_", "and_", "truediv", "floordiv", "pow", "matmul", "lshift", "rshift")
    for name in (plain, f"i{plain.rstrip('_')}")
) | {operator.lt, operator.le, operator.gt, operator.ge, operator.add}
"""Operators whose TypeErrors depend only on the names of the operand classes."""


def has_method(cls: type, *names: str, below: type | None = None) -> bool:
    """Return True if a class defines one of these special methods, ignoring ``below``."""
    return any(name in base.__dict__ for base in cls.__mro__ if base is not below for name in names)


def container_base_of(cls: type) -> type | None:
    """Return the builtin container that a class is or derives from, or None."""
    return next((base for base in cls.__mro__ if base in SAMPLE_FACTORIES), None)


def instance_of_class_named(name: str) -> Any:
    """Return an object of a new class of that name, without special methods."""
    return type(name, (), {})()


def sample_of(cls: type) -> Any:
    """Return an object of a builtin class or container subclass, else NO_STAND_IN."""
    if cls in SAMPLE_FACTORIES:
        return SAMPLE_FACTORIES[cls]()
    base = container_base_of(cls)
    if base is not None and is_heap_type(cls):  # methods that the class itself defines were tried before
        return type(cls.__name__, (base,), {})()
    return NO_STAND_IN
