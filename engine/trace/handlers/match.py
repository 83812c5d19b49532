"""``match`` statements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.trace.operations import same_or_equal
from engine.trace.signals import UserException
from engine.trace.table import handles
from engine.trace.values.base import NONE, Const, Value, force
from engine.trace.values.class_functions import is_instance
from engine.trace.values.sequences import TupleValue, sequence_items

if TYPE_CHECKING:
    from engine.bytecode.decode import Op
    from engine.trace.state import Frame, Tracer

_SEQUENCE, _MAPPING = 1 << 5, 1 << 6
"""Py_TPFLAGS_SEQUENCE and Py_TPFLAGS_MAPPING: what the class patterns ask of a type."""
_BUILTIN = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)


@handles("MATCH_MAPPING")
def _mapping(tx: Tracer, frame: Frame, op: Op) -> None:
    frame.push(Const(bool(force(tx, frame.stack[-1]).type().__flags__ & _MAPPING)))


@handles("MATCH_SEQUENCE")
def _sequence(tx: Tracer, frame: Frame, op: Op) -> None:
    frame.push(Const(bool(force(tx, frame.stack[-1]).type().__flags__ & _SEQUENCE)))


@handles("MATCH_KEYS")
def _keys(tx: Tracer, frame: Frame, op: Op) -> None:
    of, keys = force(tx, frame.stack[-2]), sequence_items(tx, frame.stack[-1])
    found: list[Value] = []
    seen: list[Value] = []
    for key in keys:
        if any(same_or_equal(tx, force(tx, key), other) for other in seen):
            tx.raise_error(ValueError, f"mapping pattern checks duplicate key ({force(tx, key).python(tx)!r})")
        seen.append(force(tx, key))
        if not of.contains(tx, force(tx, key)):
            frame.push(NONE)
            return
        found.append(of.get_item(tx, force(tx, key)))
    frame.push(TupleValue(found))


@handles("MATCH_CLASS")
def _class(tx: Tracer, frame: Frame, op: Op) -> None:
    names = sequence_items(tx, frame.stack.pop())
    cls, of = force(tx, frame.stack.pop()), force(tx, frame.stack.pop())
    if not is_instance(tx, of, cls):
        frame.push(NONE)
        return
    positional = _positional_names(tx, cls, op.arg)
    found: list[Value] = [of] if positional is None else []
    asked: set[str] = set()
    for name in (*(positional or ()), *names):
        word = str(force(tx, name).python(tx))
        if word in asked:
            tx.raise_type_error(f"{cls.real().__name__}() got multiple sub-patterns for attribute {word!r}")
        asked.add(word)
        try:
            found.append(of.get_attr(tx, word))
        except UserException as error:
            if not issubclass(error.value.type(), AttributeError):
                raise
            frame.push(NONE)
            return
    frame.push(TupleValue(found))


def _positional_names(tx: Tracer, cls: Value, count: int) -> list[Value] | None:
    """The attributes that positional patterns match; None where the one pattern matches the value itself."""
    held: Any = cls.real()
    if not count:
        return []
    try:
        names = sequence_items(tx, cls.get_attr(tx, "__match_args__"))
        given = force(tx, cls.get_attr(tx, "__match_args__"))
        if not issubclass(given.type(), tuple):
            tx.raise_type_error(f"{held.__name__}.__match_args__ must be a tuple (got {given.type().__name__})")
    except UserException as error:
        if not issubclass(error.value.type(), AttributeError):
            raise
        names = []
        if any(base in _BUILTIN for base in held.__mro__):
            if count == 1:
                return None
            plural = "1 positional sub-pattern"
            tx.raise_type_error(f"{held.__name__}() accepts {plural} ({count} given)")
    if count > len(names):
        plural = "" if len(names) == 1 else "s"
        tx.raise_type_error(f"{held.__name__}() accepts {len(names)} positional sub-pattern{plural} ({count} given)")
    for name in names[:count]:
        if force(tx, name).type() is not str:
            tx.raise_type_error(f"__match_args__ elements must be strings (got {force(tx, name).type().__name__})")
    return names[:count]
