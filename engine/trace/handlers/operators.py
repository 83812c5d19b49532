"""Handlers of operators, subscripts and comparisons."""

from __future__ import annotations

from engine.bytecode.opcodes import BINARY_OPERATORS
from engine.ir.introspection.python_operators import COMPARE
from engine.trace.annotations import DecodedInstruction, Frame, Tracer
from engine.trace.exc import Unsupported
from engine.trace.opcode_registry import handles
from engine.trace.operators import arithmetic
from engine.trace.variables.base import NONE, ConstantVariable, realize
from engine.trace.variables.containers.method_table import realize_stored
from engine.trace.variables.containers.ranges_and_slices import SliceVariable
from engine.trace.variables.containers.sequences import TupleVariable, sequence_items


@handles("BINARY_OP")
def _binary(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    symbol = BINARY_OPERATORS[op.arg]
    if symbol == "[]":
        _subscript(tx, frame, op)
        return
    right = frame.stack.pop()
    left = frame.stack.pop()
    frame.push(arithmetic.binary_op(tx, symbol, left, right))


@handles("BINARY_SUBSCR")
def _subscript(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    key = realize(tx, frame.stack.pop())
    frame.push(realize(tx, frame.stack.pop()).get_item(tx, key))


@handles("STORE_SUBSCR")
def _store_subscript(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    key = realize_stored(tx, frame.stack.pop())
    of = realize(tx, frame.stack.pop())
    of.set_item(tx, key, frame.stack.pop())


@handles("DELETE_SUBSCR")
def _delete_subscript(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    key = realize(tx, frame.stack.pop())
    realize(tx, frame.stack.pop()).del_item(tx, key)


@handles("BINARY_SLICE")
def _slice(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    start, stop = frame.popn(2)
    frame.push(realize(tx, frame.stack.pop()).get_item(tx, SliceVariable([start, stop, NONE])))


@handles("STORE_SLICE")
def _store_slice(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    value, of, start, stop = frame.popn(4)
    realize(tx, of).set_item(tx, SliceVariable([start, stop, NONE]), value)


@handles("COMPARE_OP")
def _compare(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    right = frame.stack.pop()
    left = frame.stack.pop()
    symbol = op.argval if op.argval in COMPARE else op.argrepr
    frame.push(arithmetic.compare_op(tx, symbol, left, right))


@handles("IS_OP")
def _is(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    right = frame.stack.pop()
    left = frame.stack.pop()
    frame.push(ConstantVariable(arithmetic.is_same_object(tx, left, right) != bool(op.arg)))


@handles("CONTAINS_OP")
def _contains(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    of = realize(tx, frame.stack.pop())
    item = realize(tx, frame.stack.pop())
    frame.push(ConstantVariable(of.contains(tx, item) != bool(op.arg)))


_UNARY_SYMBOLS = {"UNARY_NEGATIVE": "-", "UNARY_POSITIVE": "+", "UNARY_INVERT": "~"}


@handles(*_UNARY_SYMBOLS)
def _unary(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    frame.push(arithmetic.unary_op(tx, _UNARY_SYMBOLS[op.opname], frame.stack.pop()))


@handles("UNARY_NOT")
def _not(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    value = realize(tx, frame.stack.pop())
    if value.is_symbolic and value.python_type() is bool:
        frame.push(arithmetic.compare_op(tx, "==", value, ConstantVariable(False)))
    else:
        frame.push(ConstantVariable(not value.is_truthy(tx)))


_INTRINSICS = {3: "stop-iteration", 5: "+", 6: "tuple"}


@handles("CALL_INTRINSIC_1")
def _intrinsic(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    match _INTRINSICS.get(op.arg):
        case "+":
            frame.push(arithmetic.unary_op(tx, "+", frame.stack.pop()))
        case "tuple":
            frame.push(TupleVariable(list(sequence_items(tx, frame.stack.pop()))))
        case "stop-iteration":
            return
        case _:
            raise Unsupported(
                "unsupported-opcode", "it belongs to type parameters or to a type alias, which Python runs"
            )
