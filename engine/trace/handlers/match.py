"""``match`` statements."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.trace.signals import Unsupported, UserException
from engine.trace.table import handles
from engine.trace.values.base import NONE, Const, Value, force
from engine.trace.values.builtin_functions import is_instance
from engine.trace.values.sequences import TupleValue, sequence_items

if TYPE_CHECKING:
    from engine.bytecode.decode import Op
    from engine.trace.state import Frame, Tracer

_BUILTIN = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)


@handles("MATCH_MAPPING")
def _mapping(tx: Tracer, frame: Frame, op: Op) -> None:
    frame.push(Const(issubclass(force(tx, frame.stack[-1]).type(), Mapping)))


@handles("MATCH_SEQUENCE")
def _sequence(tx: Tracer, frame: Frame, op: Op) -> None:
    cls = force(tx, frame.stack[-1]).type()
    frame.push(Const(issubclass(cls, (list, tuple, collections.deque, range)) and not issubclass(cls, (str, bytes))))


@handles("MATCH_KEYS")
def _keys(tx: Tracer, frame: Frame, op: Op) -> None:
    of, keys = force(tx, frame.stack[-2]), sequence_items(tx, frame.stack[-1])
    found: list[Value] = []
    for key in keys:
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
    positional = _positional(tx, cls, of, op.arg)
    if positional is None:
        raise Unsupported("unsupported-operation", f"matching a {of.describe()} by position")
    found = list(positional)
    for name in names:
        try:
            found.append(of.get_attr(tx, str(force(tx, name).python(tx))))
        except UserException as error:
            if not issubclass(error.value.type(), AttributeError):
                raise
            frame.push(NONE)
            return
    frame.push(TupleValue(found))


def _positional(tx: Tracer, cls: Value, of: Value, count: int) -> list[Value] | None:
    if not count:
        return []
    held = cls.real()
    if held in _BUILTIN:
        return [of] if count == 1 else None
    names = getattr(held, "__match_args__", ())
    return [of.get_attr(tx, n) for n in names[:count]] if len(names) >= count else None
