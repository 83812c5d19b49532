"""Exceptions of the traced code: their context, and the jump to the frame's handler."""

from __future__ import annotations

from engine.bytecode.resume_functions import InstructionOffset
from engine.trace.annotations import Frame, Tracer
from engine.trace.exc import SkipFrame
from engine.trace.variables.base import NONE, ConstantVariable, Variable, is_none
from engine.trace.variables.exceptions.exceptions import ExceptionVariable, current_exception


def set_exception_context(tx: Tracer, error: Variable) -> None:
    """Set ``__context__`` of a new exception to the exception that is being handled."""
    handled = current_exception(tx)
    if not isinstance(error, ExceptionVariable):
        return
    error.raise_line = tx.user_stack()[0].line
    error.traceback = None
    if not is_none(error.attributes.pop("__traceback__", NONE)):
        raise SkipFrame("traceback", "an exception with another one's traceback is raised")
    error.raised_at = error.raised_at or tx.instruction_counter.root_instruction_number
    if handled is None or handled is error:
        return
    chained: Variable | None = handled
    visited: set[int] = set()
    while isinstance(chained, ExceptionVariable) and id(chained) not in visited:
        visited.add(id(chained))
        if chained.attributes.get("__context__") is error:
            del chained.attributes["__context__"]
            break
        chained = chained.attributes.get("__context__")
    error.set_attr(tx, "__context__", handled)


def jump_to_handler(frame: Frame, error: Variable) -> bool:
    """Jump to the exception handler of the current instruction; return False if there is none."""
    handler = frame.decoded.handlers[frame.op.index]
    if handler is None:
        return False
    del frame.stack[handler.depth :]
    if handler.pushes_lasti:
        frame.push(ConstantVariable(InstructionOffset(frame.op.offset // 2)))
    frame.push(error)
    frame.next_index = handler.target
    return True
