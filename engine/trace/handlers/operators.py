"""Handlers of operators, subscripts and comparisons."""

from __future__ import annotations

from engine.bytecode.opcodes import BINARY_OPERATORS
from engine.ir.introspection.python_operators import COMPARE
from engine.trace.annotations import DecodedInstruction, Frame, Tracer
from engine.trace.exc import Unsupported
from engine.trace.opcode_registry import handle_by_value, handles
from engine.trace.operators import arithmetic
from engine.trace.variables.base import NONE, ConstantVariable, Variable, realize
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


@handles("STORE_SLICE")
def _store_slice(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    value, of, start, stop = frame.popn(4)
    realize(tx, of).set_item(tx, SliceVariable([start, stop, NONE]), value)


def _slice(tx: Tracer, op: DecodedInstruction, of: Variable, start: Variable, stop: Variable) -> Variable:
    return realize(tx, of).get_item(tx, SliceVariable([start, stop, NONE]))


def _compare(tx: Tracer, op: DecodedInstruction, left: Variable, right: Variable) -> Variable:
    return arithmetic.compare_op(tx, op.argval if op.argval in COMPARE else op.argrepr, left, right)


def _is(tx: Tracer, op: DecodedInstruction, left: Variable, right: Variable) -> Variable:
    return ConstantVariable(arithmetic.is_same_object(tx, left, right) != bool(op.arg))


def _contains(tx: Tracer, op: DecodedInstruction, item: Variable, of: Variable) -> Variable:
    return ConstantVariable(realize(tx, of).contains(tx, realize(tx, item)) != bool(op.arg))


def _not(tx: Tracer, op: DecodedInstruction, operand: Variable) -> Variable:
    value = realize(tx, operand)
    if value.is_symbolic and value.python_type() is bool:
        return arithmetic.compare_op(tx, "==", value, ConstantVariable(False))
    return ConstantVariable(not value.is_truthy(tx))


handle_by_value("BINARY_SLICE", 3, _slice)
handle_by_value("COMPARE_OP", 2, _compare)
handle_by_value("IS_OP", 2, _is)
handle_by_value("CONTAINS_OP", 2, _contains)
handle_by_value("UNARY_NOT", 1, _not)
handle_by_value("UNARY_NEGATIVE", 1, lambda tx, op, operand: arithmetic.unary_op(tx, "-", operand))
handle_by_value("UNARY_POSITIVE", 1, lambda tx, op, operand: arithmetic.unary_op(tx, "+", operand))
handle_by_value("UNARY_INVERT", 1, lambda tx, op, operand: arithmetic.unary_op(tx, "~", operand))


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
