"""Bodies of generators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.bytecode.opcodes import VERSION
from engine.trace.signals import Unsupported
from engine.trace.table import YIELD, handles
from engine.trace.values.base import NONE, force, is_none
from engine.trace.values.functions import GeneratorValue

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
    if isinstance(inner, GeneratorValue):
        item = inner.send(tx, sent)
        returned = inner.frame.result if item is None else None
    else:
        if not is_none(sent):
            raise Unsupported("unsupported-operation", "sending a value into an iterator")
        item, returned = inner.step(tx), NONE
    if item is not None:
        frame.push(item)
        return
    if VERSION == (3, 11):
        frame.stack.pop()
    frame.push(returned if returned is not None else NONE)
    frame.index = op.target


@handles("END_SEND")
def _end_send(tx: Tracer, frame: Frame, op: Op) -> None:
    result = frame.stack.pop()
    frame.stack.pop()
    frame.push(result)
