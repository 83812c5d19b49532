"""Registry of the ways to construct an instance, by class."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from engine.ir.introspection.python_objects import is_heap_type
from engine.trace.annotations import Tracer
from engine.trace.exc import SkipFrame, Unsupported
from engine.trace.graph_breaks.reasons import unknown_call_kind
from engine.trace.variables.base import Args, Kwargs, Variable
from engine.trace.variables.objects.class_lookup import find_in_class

Constructor = Callable[["Tracer", Variable, Args, Kwargs], Variable]
"""Constructs an instance from the class and the arguments."""
_CONSTRUCTORS: list[tuple[int, Callable[[Any], bool], Constructor]] = []
_IMMUTABLE_TYPE = 1 << 8
"""Py_TPFLAGS_IMMUTABLETYPE: set for C classes only."""
METACLASS_CALL_ORDER = 50
"""Order of the constructor that calls ``__call__`` of a metaclass."""

ConstructorRule = Callable[["Tracer", Any, Args, Kwargs], Variable]
C_CLASS_CONSTRUCTORS: dict[builtins.type, ConstructorRule] = {}
"""Constructor rules by C class.

They also apply to subclasses, and to the same class from a second import of its module.
"""


def register_constructor(order: int, applies: Callable[[Any], bool]) -> Callable[[Constructor], Constructor]:
    """Register the constructor of classes that match the predicate. Low ``order`` comes first."""

    def register(constructor: Constructor) -> Constructor:
        _CONSTRUCTORS.append((order, applies, constructor))
        _CONSTRUCTORS.sort(key=lambda entry: entry[0])
        return constructor

    return register


def construct(tx: Tracer, of: Variable, args: Args, kwargs: Kwargs, *, by_type: bool = False) -> Variable:
    """Construct an instance of a class that has no rule.

    ``by_type``: ignore ``__call__`` of the metaclass.
    """
    cls = of.as_python_object()
    _check_no_finalizer(cls)
    for order, applies, constructor in _CONSTRUCTORS:
        if applies(cls) and not (by_type and order == METACLASS_CALL_ORDER):
            return constructor(tx, of, args, kwargs)
    raise Unsupported("object-creation", f"{cls.__module__}.{cls.__qualname__} is created")


def _check_no_finalizer(cls: builtins.type) -> None:
    """Skip the frame if it creates an object with ``__del__``.

    ``__del__`` runs when the last reference goes away, but compiled code may hold the object for longer.
    """
    if find_in_class(cls, "__del__") is None:
        return
    if cls.__flags__ & _IMMUTABLE_TYPE or not is_heap_type(cls):
        kind = unknown_call_kind(cls)
        raise SkipFrame(
            "object-creation" if kind == "unknown-call" else kind, f"{cls.__module__}.{cls.__qualname__} is created"
        )
    raise SkipFrame("finalizer", f"{cls.__qualname__} is created, and its class has a __del__")


def c_class_constructor_of(cls: builtins.type) -> ConstructorRule | None:
    """Return the constructor rule of the C class that constructs instances, or None."""
    for base in cls.__mro__[:-1]:
        rule = C_CLASS_CONSTRUCTORS.get(base)
        if rule is not None:
            return rule
        if "__new__" in vars(base):
            return None
    return None
