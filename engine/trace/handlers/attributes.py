"""Handlers of attribute opcodes: LOAD_ATTR, STORE_ATTR, DELETE_ATTR and super attributes."""

from __future__ import annotations

from engine.bytecode.opcodes import RULES
from engine.trace.annotations import DecodedInstruction, Frame, Tracer
from engine.trace.opcode_registry import handles
from engine.trace.variables.base import NULL, Variable, realize
from engine.trace.variables.objects.super_objects import SuperVariable


def push_method(frame: Frame, value: Variable) -> None:
    """Push the result of a method load, always as NULL and a bound attribute."""
    frame.stack.extend((value, NULL) if RULES.null_above_callable else (NULL, value))


@handles("LOAD_ATTR")
def _load(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    value = realize(tx, frame.stack.pop()).get_attr(tx, op.argval)
    if RULES.load_attr_has_flag and op.arg & 1:
        push_method(frame, value)
    else:
        frame.push(value)


@handles("LOAD_METHOD")
def _load_method(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    push_method(frame, realize(tx, frame.stack.pop()).get_attr(tx, op.argval))


@handles("LOAD_SUPER_ATTR")
def _load_super(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    _, cls, of = frame.popn(3)
    value = SuperVariable(realize(tx, cls).as_python_constant(tx), realize(tx, of)).get_attr(
        tx, frame.code.co_names[op.arg >> 2]
    )
    if op.arg & 1:
        push_method(frame, value)
    else:
        frame.push(value)


@handles("STORE_ATTR")
def _store(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    of = realize(tx, frame.stack.pop())
    of.set_attr(tx, op.argval, frame.stack.pop())


@handles("DELETE_ATTR")
def _delete(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    realize(tx, frame.stack.pop()).del_attr(tx, op.argval)
