"""Operators, indexing, comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.bytecode.opcodes import BINARY_OPERATORS
from engine.trace import operations
from engine.trace.signals import Unsupported
from engine.trace.table import handles
from engine.trace.values.base import Const, force
from engine.trace.values.exception_groups import left_to_raise
from engine.trace.values.sequences import SliceValue, TupleValue, sequence_items

if TYPE_CHECKING:
    from engine.bytecode.decode import Op
    from engine.trace.state import Frame, Tracer


@handles("BINARY_OP")
def _binary(tx: Tracer, frame: Frame, op: Op) -> None:
    right = frame.stack.pop()
    left = frame.stack.pop()
    frame.push(operations.binary(tx, BINARY_OPERATORS[op.arg], left, right))


@handles("BINARY_SUBSCR")
def _subscript(tx: Tracer, frame: Frame, op: Op) -> None:
    key = force(tx, frame.stack.pop())
    frame.push(force(tx, frame.stack.pop()).get_item(tx, key))


@handles("STORE_SUBSCR")
def _store_subscript(tx: Tracer, frame: Frame, op: Op) -> None:
    key = force(tx, frame.stack.pop())
    of = force(tx, frame.stack.pop())
    of.set_item(tx, key, frame.stack.pop())


@handles("DELETE_SUBSCR")
def _delete_subscript(tx: Tracer, frame: Frame, op: Op) -> None:
    key = force(tx, frame.stack.pop())
    force(tx, frame.stack.pop()).del_item(tx, key)


@handles("BINARY_SLICE")
def _slice(tx: Tracer, frame: Frame, op: Op) -> None:
    start, stop = frame.popn(2)
    frame.push(force(tx, frame.stack.pop()).get_item(tx, SliceValue([start, stop, Const(None)])))


@handles("STORE_SLICE")
def _store_slice(tx: Tracer, frame: Frame, op: Op) -> None:
    value, of, start, stop = frame.popn(4)
    force(tx, of).set_item(tx, SliceValue([start, stop, Const(None)]), value)


@handles("COMPARE_OP")
def _compare(tx: Tracer, frame: Frame, op: Op) -> None:
    right = frame.stack.pop()
    left = frame.stack.pop()
    symbol = op.argval if op.argval in operations.COMPARE else op.argrepr
    frame.push(operations.compare(tx, symbol, left, right))


@handles("IS_OP")
def _is(tx: Tracer, frame: Frame, op: Op) -> None:
    right = frame.stack.pop()
    left = frame.stack.pop()
    frame.push(Const(operations.is_same(tx, left, right) != bool(op.arg)))


@handles("CONTAINS_OP")
def _contains(tx: Tracer, frame: Frame, op: Op) -> None:
    of = force(tx, frame.stack.pop())
    item = force(tx, frame.stack.pop())
    frame.push(Const(of.contains(tx, item) != bool(op.arg)))


@handles("UNARY_NEGATIVE")
def _negative(tx: Tracer, frame: Frame, op: Op) -> None:
    frame.push(operations.unary(tx, "-", frame.stack.pop()))


@handles("UNARY_POSITIVE")
def _positive(tx: Tracer, frame: Frame, op: Op) -> None:
    frame.push(operations.unary(tx, "+", frame.stack.pop()))


@handles("UNARY_INVERT")
def _invert(tx: Tracer, frame: Frame, op: Op) -> None:
    frame.push(operations.unary(tx, "~", frame.stack.pop()))


@handles("UNARY_NOT")
def _not(tx: Tracer, frame: Frame, op: Op) -> None:
    frame.push(Const(not force(tx, frame.stack.pop()).truth(tx)))


_INTRINSICS = {3: "stop-iteration", 5: "+", 6: "tuple"}


@handles("CALL_INTRINSIC_1")
def _intrinsic(tx: Tracer, frame: Frame, op: Op) -> None:
    match _INTRINSICS.get(op.arg):
        case "+":
            frame.push(operations.unary(tx, "+", frame.stack.pop()))
        case "tuple":
            frame.push(TupleValue(list(sequence_items(tx, frame.stack.pop()))))
        case "stop-iteration":
            return
        case _:
            raise Unsupported("unsupported-opcode", "a rare kind of statement")


_PREPARE_RERAISE = 1


@handles("CALL_INTRINSIC_2")
def _intrinsic_two(tx: Tracer, frame: Frame, op: Op) -> None:
    if op.arg != _PREPARE_RERAISE:
        raise Unsupported("unsupported-opcode", "a rare kind of statement")
    whole, raised = frame.popn(2)
    frame.push(left_to_raise(tx, force(tx, whole), list(sequence_items(tx, raised))))
