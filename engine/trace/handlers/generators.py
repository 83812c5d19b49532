"""Bodies of generators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.bytecode.opcodes import VERSION
from engine.trace.signals import UserException
from engine.trace.table import YIELD, handles
from engine.trace.values.base import NONE, Value, force, is_none
from engine.trace.values.generators import GeneratorValue
from engine.trace.values.objects import ObjectValue

if TYPE_CHECKING:
    from engine.bytecode.decode import Op
    from engine.trace.state import Frame, Tracer


@handles("RETURN_GENERATOR")
def _return_generator(tx: Tracer, frame: Frame, op: Op) -> None:
    frame.push(NONE)


@handles("YIELD_VALUE")
def _yield(tx: Tracer, frame: Frame, op: Op) -> Any:
    frame.result = frame.stack.pop()
    return YIELD


@handles("GET_YIELD_FROM_ITER")
def _yield_from_iter(tx: Tracer, frame: Frame, op: Op) -> None:
    frame.push(force(tx, force(tx, frame.stack.pop()).iterate(tx)))


@handles("SEND")
def _send(tx: Tracer, frame: Frame, op: Op) -> None:
    sent = force(tx, frame.stack.pop())
    inner = force(tx, frame.stack[-1])
    item, returned = _sent(tx, inner, sent)
    if item is not None:
        frame.push(item)
        return
    if VERSION == (3, 11):
        frame.stack.pop()
    frame.push(returned)
    frame.index = op.target


def _sent(tx: Tracer, inner: Value, sent: Value) -> tuple[Value | None, Value]:
    """What ``yield from`` gets of its iterator: an item, or None and what the iterator returned."""
    if isinstance(inner, GeneratorValue):
        item = inner.send(tx, sent)
        return item, inner.returned() if item is None else NONE
    if is_none(sent) and not isinstance(inner, ObjectValue):
        return inner.step(tx), NONE
    try:
        if is_none(sent):
            return inner.call_method(tx, "__next__", [], {}), NONE
        return inner.call_method(tx, "send", [sent], {}), NONE
    except UserException as error:
        if not issubclass(error.value.type(), StopIteration):
            raise
        return None, error.value.get_attr(tx, "value")


@handles("END_SEND")
def _end_send(tx: Tracer, frame: Frame, op: Op) -> None:
    result = frame.stack.pop()
    frame.stack.pop()
    frame.push(result)
