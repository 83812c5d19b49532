"""Handlers of jumps and loops."""

from __future__ import annotations

from engine.bytecode.opcodes import index_after_loop
from engine.trace.annotations import DecodedInstruction, Frame, Tracer
from engine.trace.opcode_registry import handles
from engine.trace.variables.base import ConstantVariable, Variable, is_none, realize
from engine.trace.variables.higher_order.subgraph import SubgraphBuilder
from engine.trace.variables.tensors.tensor import TensorVariable


@handles("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def _jump(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    frame.next_index = op.target


_IF_TRUE = ("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_IF_TRUE")
_IF_FALSE = ("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_IF_FALSE")


@handles(*_IF_TRUE)
def _if_true(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    if _branch_condition(tx, frame, realize(tx, frame.stack.pop()), on_true=op.target, on_false=frame.next_index):
        frame.next_index = op.target


@handles(*_IF_FALSE)
def _if_false(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    if not _branch_condition(tx, frame, realize(tx, frame.stack.pop()), on_true=frame.next_index, on_false=op.target):
        frame.next_index = op.target


@handles("TO_BOOL")
def _to_bool(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    """Evaluate the boolean on which the next instruction branches (Python 3.13 and later)."""
    value = realize(tx, frame.stack.pop())
    jump = frame.decoded.ops[frame.next_index]
    after = frame.next_index + 1
    if jump.opname in _IF_TRUE:
        truth = _branch_condition(tx, frame, value, on_true=jump.target, on_false=after)
    elif jump.opname in _IF_FALSE:
        truth = _branch_condition(tx, frame, value, on_true=after, on_false=jump.target)
    elif jump.opname == "UNARY_NOT":  # It asks for the boolean itself, and keeps that of the data in the graph.
        frame.push(value)
        return
    else:
        truth = value.is_truthy(tx)
    frame.push(ConstantVariable(truth))


def _branch_condition(tx: Tracer, frame: Frame, value: Variable, *, on_true: int, on_false: int) -> bool:
    """Return the boolean value of a branch condition.

    For a tensor condition, if one branch can only raise, assume the other one: generated code checks the
    condition.
    """
    if isinstance(value, TensorVariable) and not isinstance(tx.graph, SubgraphBuilder):
        bad, good = _only_raises(frame, on_true), _only_raises(frame, on_false)
        if bad != good and value.fake.numel() == 1 and not value.fake.is_meta:
            tx.fallback.assume_condition(value.node(tx), truth=good)
            return good
    return value.is_truthy(tx)


_MAX_LOOKAHEAD = 120
_LOOKAHEAD_STOPS = ("RETURN", "YIELD", "FOR_ITER", "RERAISE")


def _only_raises(frame: Frame, start: int) -> bool:
    """Return True if the instructions from ``start`` lead to a ``raise`` without any branch."""
    for op in frame.decoded.ops[start : start + _MAX_LOOKAHEAD]:
        if op.opname == "RAISE_VARARGS":
            return True
        if op.target >= 0 or op.opname.startswith(_LOOKAHEAD_STOPS):
            return False
    return False


@handles("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_IF_NONE")
def _if_none(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    if is_none(realize(tx, frame.stack.pop())):
        frame.next_index = op.target


@handles("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE", "POP_JUMP_IF_NOT_NONE")
def _if_not_none(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    if not is_none(realize(tx, frame.stack.pop())):
        frame.next_index = op.target


@handles("JUMP_IF_TRUE_OR_POP")
def _true_or_pop(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    if realize(tx, frame.stack[-1]).is_truthy(tx):
        frame.next_index = op.target
    else:
        frame.stack.pop()


@handles("JUMP_IF_FALSE_OR_POP")
def _false_or_pop(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    if not realize(tx, frame.stack[-1]).is_truthy(tx):
        frame.next_index = op.target
    else:
        frame.stack.pop()


@handles("GET_ITER")
def _get_iter(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    frame.push(realize(tx, realize(tx, frame.stack.pop()).get_iterator(tx)))


@handles("FOR_ITER")
def _for_iter(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    item = realize(tx, frame.stack[-1]).next_item(tx)
    if item is not None:
        frame.push(item)
        return
    frame.stack.pop()
    frame.next_index = index_after_loop(op.target)
