"""Jumps and loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.bytecode.opcodes import after_loop
from engine.trace.table import handles
from engine.trace.values.base import Const, Value, force, is_none
from engine.trace.values.nested import NestedBuilder
from engine.trace.values.tensor import TensorValue

if TYPE_CHECKING:
    from engine.bytecode.decode import Op
    from engine.trace.state import Frame, Tracer


@handles("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def _jump(tx: Tracer, frame: Frame, op: Op) -> None:
    frame.index = op.target


_IF_TRUE = ("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_IF_TRUE")
_IF_FALSE = ("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_IF_FALSE")


@handles(*_IF_TRUE)
def _if_true(tx: Tracer, frame: Frame, op: Op) -> None:
    if _truth(tx, frame, force(tx, frame.stack.pop()), on_true=op.target, on_false=frame.index):
        frame.index = op.target


@handles(*_IF_FALSE)
def _if_false(tx: Tracer, frame: Frame, op: Op) -> None:
    if not _truth(tx, frame, force(tx, frame.stack.pop()), on_true=frame.index, on_false=op.target):
        frame.index = op.target


@handles("TO_BOOL")
def _to_bool(tx: Tracer, frame: Frame, op: Op) -> None:
    """The truth of what the next instruction decides a jump by, since Python 3.13."""
    value = force(tx, frame.stack.pop())
    jump = frame.decoded.ops[frame.index]
    after = frame.index + 1
    if jump.opname in _IF_TRUE:
        truth = _truth(tx, frame, value, on_true=jump.target, on_false=after)
    elif jump.opname in _IF_FALSE:
        truth = _truth(tx, frame, value, on_true=after, on_false=jump.target)
    else:
        truth = value.truth(tx)
    frame.push(Const(truth))


def _truth(tx: Tracer, frame: Frame, value: Value, *, on_true: int, on_false: int) -> bool:
    """The truth of what decides a jump. Where one way can only raise, a tensor is taken to lead the other way, and the code checks it."""
    if isinstance(value, TensorValue) and not isinstance(tx.graph, NestedBuilder):
        bad, good = _only_raises(frame, on_true), _only_raises(frame, on_false)
        if bad != good and value.fake.numel() == 1 and not value.fake.is_meta:
            tx.take_for_granted(value.node(tx), truth=good)
            return good
    return value.truth(tx)


_LOOKED_AHEAD = 120
_ENDS = ("RETURN", "YIELD", "FOR_ITER", "RERAISE")


def _only_raises(frame: Frame, start: int) -> bool:
    """Whether instructions from here on lead to a ``raise`` without any further choice."""
    for op in frame.decoded.ops[start : start + _LOOKED_AHEAD]:
        if op.opname == "RAISE_VARARGS":
            return True
        if op.target >= 0 or op.opname.startswith(_ENDS):
            return False
    return False


@handles("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_IF_NONE")
def _if_none(tx: Tracer, frame: Frame, op: Op) -> None:
    if is_none(force(tx, frame.stack.pop())):
        frame.index = op.target


@handles("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE", "POP_JUMP_IF_NOT_NONE")
def _if_not_none(tx: Tracer, frame: Frame, op: Op) -> None:
    if not is_none(force(tx, frame.stack.pop())):
        frame.index = op.target


@handles("JUMP_IF_TRUE_OR_POP")
def _true_or_pop(tx: Tracer, frame: Frame, op: Op) -> None:
    if force(tx, frame.stack[-1]).truth(tx):
        frame.index = op.target
    else:
        frame.stack.pop()


@handles("JUMP_IF_FALSE_OR_POP")
def _false_or_pop(tx: Tracer, frame: Frame, op: Op) -> None:
    if not force(tx, frame.stack[-1]).truth(tx):
        frame.index = op.target
    else:
        frame.stack.pop()


@handles("GET_ITER")
def _get_iter(tx: Tracer, frame: Frame, op: Op) -> None:
    frame.push(force(tx, force(tx, frame.stack.pop()).iterate(tx)))


@handles("FOR_ITER")
def _for_iter(tx: Tracer, frame: Frame, op: Op) -> None:
    item = force(tx, frame.stack[-1]).step(tx)
    if item is not None:
        frame.push(item)
        return
    frame.stack.pop()
    frame.index = after_loop(op.target)
