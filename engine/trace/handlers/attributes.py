"""Attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.bytecode.opcodes import VERSION
from engine.trace.table import handles
from engine.trace.values.base import NULL, Value, force
from engine.trace.values.classes import SuperValue
from engine.trace.values.exceptions import read, write

if TYPE_CHECKING:
    from engine.bytecode.decode import Op
    from engine.trace.state import Frame, Tracer


def push_method(frame: Frame, value: Value) -> None:
    """Push what a method load leaves: always (NULL, bound attribute)."""
    frame.stack.extend((value, NULL) if VERSION >= (3, 13) else (NULL, value))


@handles("LOAD_ATTR")
def _load(tx: Tracer, frame: Frame, op: Op) -> None:
    value = read(tx, force(tx, frame.stack.pop()), op.argval)
    if VERSION >= (3, 12) and op.arg & 1:
        push_method(frame, value)
    else:
        frame.push(value)


@handles("LOAD_METHOD")
def _load_method(tx: Tracer, frame: Frame, op: Op) -> None:
    push_method(frame, read(tx, force(tx, frame.stack.pop()), op.argval))


@handles("LOAD_SUPER_ATTR")
def _load_super(tx: Tracer, frame: Frame, op: Op) -> None:
    _, cls, of = frame.popn(3)
    value = SuperValue(force(tx, cls).python(tx), force(tx, of)).get_attr(tx, frame.code.co_names[op.arg >> 2])
    if op.arg & 1:
        push_method(frame, value)
    else:
        frame.push(value)


@handles("STORE_ATTR")
def _store(tx: Tracer, frame: Frame, op: Op) -> None:
    of = force(tx, frame.stack.pop())
    write(tx, of, op.argval, frame.stack.pop())


@handles("DELETE_ATTR")
def _delete(tx: Tracer, frame: Frame, op: Op) -> None:
    write(tx, force(tx, frame.stack.pop()), op.argval, None)
