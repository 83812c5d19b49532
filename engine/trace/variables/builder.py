"""Build variables from real objects: builders by exact type, then conditional builders.

Each module of variables registers its builders here (``VariableBuilder`` and ``SourcelessBuilder`` in Dynamo).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from engine.ir.guards.base import user_expr
from engine.ir.introspection.literal_types import LITERAL_TYPES, is_enum_or_numpy_scalar
from engine.ir.introspection.python_objects import is_dtensor_placement
from engine.ir.register_once import register_once
from engine.ir.sources.base import Source
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import ConstantVariable, Variable

VariableBuilder = Callable[["Tracer", Any, Source], Variable]
_BUILDERS_BY_TYPE: dict[type, VariableBuilder] = {}
_CONDITIONAL_BUILDERS: list[tuple[int, Callable[[Any], bool], VariableBuilder]] = []
_SOURCELESS_BUILDERS: dict[type, Callable[[Any, Any], Variable]] = {}


def _guard_type_and_build(why: str, builder: VariableBuilder, tx: Tracer, real: Any, source: Source) -> Variable:
    if why:
        tx.guard_type(real, source, why)
    return builder(tx, real, source)


def register_builder(*types: type, why: str = "") -> Callable[[VariableBuilder], VariableBuilder]:
    """Register the builder for objects of exactly these types.

    ``why`` is the reason of a guard on the type, which is added first; without it, the builder adds all guards.
    """

    def register(builder: VariableBuilder) -> VariableBuilder:
        register_once(_BUILDERS_BY_TYPE, types, "a builder")(functools.partial(_guard_type_and_build, why, builder))
        return builder

    return register


def register_builder_if(
    order: int, predicate: Callable[[Any], bool], *, why: str = ""
) -> Callable[[VariableBuilder], VariableBuilder]:
    """Register a builder for objects without an exact-type builder. Low ``order`` runs first."""

    def register(builder: VariableBuilder) -> VariableBuilder:
        _CONDITIONAL_BUILDERS.append((order, predicate, functools.partial(_guard_type_and_build, why, builder)))
        _CONDITIONAL_BUILDERS.sort(key=lambda p: p[0])
        return builder

    return register


def register_subclass_builder(order: int, *bases: type, why: str = "") -> Callable[[VariableBuilder], VariableBuilder]:
    """Register the builder for instances of these classes and of their subclasses."""
    return register_builder_if(order, lambda real: isinstance(real, bases), why=why)


def guarded_builder(make: Callable[[Any, Source], Variable], why: str, *, by_type: bool = False) -> VariableBuilder:
    """Return a builder that guards the identity of an object, or its type, and calls ``make``.

    ``why`` is the reason of the guard: a format string that gets the object.
    """

    def build(tx: Tracer, real: Any, source: Source) -> Variable:
        (tx.guard_type if by_type else tx.guard_identity)(real, source, why.format(real))
        return make(real, source)

    return build


def register_sourceless_builder(
    *types: type,
) -> Callable[[Callable[[Tracer, Any], Variable]], Callable[[Tracer, Any], Variable]]:
    """Register the builder of a new, sourceless variable for Python objects of these types."""
    return register_once(_SOURCELESS_BUILDERS, types, "a sourceless builder")


def build_variable(tx: Tracer, real: Any, source: Source) -> Variable:
    """Build the variable of a real object and add the guards for reading it."""
    exact = _BUILDERS_BY_TYPE.get(type(real))
    if exact is not None:
        return exact(tx, real, source)
    for _, predicate, builder in _CONDITIONAL_BUILDERS:
        if predicate(real):
            return builder(tx, real, source)
    raise Unsupported("unsupported-value", f"{user_expr(source)} (type {type(real).__name__})")


def build_sourceless(tx: Tracer, value: Any) -> Variable:
    """Build a new, sourceless variable for a Python object."""
    maker = _SOURCELESS_BUILDERS.get(type(value))
    if maker is not None:
        return maker(tx, value)
    if is_literal(value):
        return ConstantVariable(value)
    if isinstance(value, Variable):
        return value
    return tx.wrap_static(value)


def is_literal(value: Any) -> bool:
    """Return True if ``ConstantVariable`` can hold the object.

    Such an object is immutable, and equal objects are interchangeable.
    """
    return type(value) in LITERAL_TYPES or is_enum_or_numpy_scalar(value) or is_dtensor_placement(value)
