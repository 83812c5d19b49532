"""Handlers of generator opcodes: YIELD_VALUE, SEND and yield from."""

from __future__ import annotations

from typing import Any

from engine.bytecode.opcodes import RULES
from engine.trace.annotations import DecodedInstruction, Frame, Tracer
from engine.trace.exc import UserException
from engine.trace.opcode_registry import YIELD, handle_by_value, handles
from engine.trace.variables.base import NONE, Variable, is_none, realize
from engine.trace.variables.callables.generators import GeneratorVariable

handle_by_value("RETURN_GENERATOR", 0, lambda tx, op: NONE)


@handles("YIELD_VALUE")
def _yield(tx: Tracer, frame: Frame, op: DecodedInstruction) -> Any:
    frame.result = frame.stack.pop()
    return YIELD


@handles("SEND")
def _send(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    sent = realize(tx, frame.stack.pop())
    inner = realize(tx, frame.stack[-1])
    item, returned = _send_to_delegate(tx, inner, sent)
    if item is not None:
        frame.push(item)
        return
    if not RULES.send_keeps_iterator:
        frame.stack.pop()
    frame.push(returned)
    frame.next_index = op.target


def _send_to_delegate(tx: Tracer, inner: Variable, sent: Variable) -> tuple[Variable | None, Variable]:
    """Send a value to the iterator of ``yield from``.

    Return the next item, or None and the iterator's return value.
    """
    if isinstance(inner, GeneratorVariable):
        item = inner.send(tx, sent)
        return item, inner.take_return_value() if item is None else NONE
    if is_none(sent) and not inner.is_user_object:
        return inner.next_item(tx), NONE
    try:
        if is_none(sent):
            return inner.call_method(tx, "__next__", [], {}), NONE
        return inner.call_method(tx, "send", [sent], {}), NONE
    except UserException as error:
        if not issubclass(error.exception.python_type(), StopIteration):
            raise
        return None, error.exception.get_attr(tx, "value")


@handles("END_SEND")
def _end_send(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    result = frame.stack.pop()
    frame.stack.pop()
    frame.push(result)
