"""From real objects to values: a registry of builders by exact type, then ordered predicates, filled in by each family."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.ir.exact import is_placement
from engine.ir.origin import Origin
from engine.trace.signals import Unsupported
from engine.trace.values.base import Const, Value

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Builder = Callable[["Tracer", Any, Origin], Value]
_EXACT: dict[type, Builder] = {}
_PREDICATES: list[tuple[int, Callable[[Any], bool], Builder]] = []
_FROM_PYTHON: dict[type, Callable[[Any, Any], Value]] = {}


def wraps(*types: type) -> Callable[[Builder], Builder]:
    """Register the builder for objects of exactly these types."""

    def register(builder: Builder) -> Builder:
        for t in types:
            if t in _EXACT:
                raise ValueError(f"{t.__name__} has a builder already")
            _EXACT[t] = builder
        return builder

    return register


def wraps_if(order: int, predicate: Callable[[Any], bool]) -> Callable[[Builder], Builder]:
    """Register a builder for what exact types miss; lower ``order`` is asked first."""

    def register(builder: Builder) -> Builder:
        _PREDICATES.append((order, predicate, builder))
        _PREDICATES.sort(key=lambda p: p[0])
        return builder

    return register


def makes(*types: type) -> Callable[[Callable[[Tracer, Any], Value]], Callable[[Tracer, Any], Value]]:
    """Register how a Python object of these types, made by folding, becomes a fresh value."""

    def register(maker: Callable[[Tracer, Any], Value]) -> Callable[[Tracer, Any], Value]:
        for t in types:
            _FROM_PYTHON[t] = maker
        return maker

    return register


def build(tx: Tracer, real: Any, origin: Origin) -> Value:
    """The value for a real object, with the guards that reading it takes."""
    exact = _EXACT.get(type(real))
    if exact is not None:
        return exact(tx, real, origin)
    for _, predicate, builder in _PREDICATES:
        if predicate(real):
            return builder(tx, real, origin)
    raise Unsupported("unsupported-operation", f"a value of type {type(real).__name__}")


def from_python(tx: Tracer, value: Any) -> Value:
    """A fresh value (no origin) for a Python object."""
    maker = _FROM_PYTHON.get(type(value))
    if maker is not None:
        return maker(tx, value)
    if is_literal(value):
        return Const(value)
    if isinstance(value, Value):
        return value
    if type(value) in _FINITE:
        from engine.trace.values.iterators import SequenceIterator

        return SequenceIterator([from_python(tx, item) for item in value], type(value))  # each call makes its own
    return tx.fixed(value)


_OVER: tuple[Any, ...] = ("", b"", (), [], {}, range(0), range(2**99), set())
_FINITE = frozenset(
    type(made) for over in _OVER for made in (iter(over), reversed(over if hasattr(over, "__reversed__") else ()))
)
"""Iterators over what is all there."""


def is_literal(value: Any) -> bool:
    """Whether ``Const`` can hold it: immutable, and equal values are interchangeable."""
    from engine.trace.values.constants import LITERALS, is_enum_member

    return type(value) in LITERALS or is_enum_member(value) or is_placement(value)
