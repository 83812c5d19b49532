"""Jumps and loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.bytecode.opcodes import after_loop
from engine.trace.table import handles
from engine.trace.values.base import force, is_none

if TYPE_CHECKING:
    from engine.bytecode.decode import Op
    from engine.trace.state import Frame, Tracer


@handles("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def _jump(tx: Tracer, frame: Frame, op: Op) -> None:
    frame.index = op.target


@handles("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_IF_TRUE")
def _if_true(tx: Tracer, frame: Frame, op: Op) -> None:
    if force(tx, frame.stack.pop()).truth(tx):
        frame.index = op.target


@handles("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_IF_FALSE")
def _if_false(tx: Tracer, frame: Frame, op: Op) -> None:
    if not force(tx, frame.stack.pop()).truth(tx):
        frame.index = op.target


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
