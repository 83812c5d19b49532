"""The instruction loop: looks up each opcode's handler, and sends the user's exceptions to the handler that covers them."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from engine.bytecode.opcodes import reason
from engine.bytecode.resume import InstructionOffset
from engine.options import config
from engine.trace.nested_breaks import innermost_cut
from engine.trace.open_generators import close_dead
from engine.trace.signals import Skip, TraceSignal, Unsupported, UserException
from engine.trace.table import HANDLERS
from engine.trace.values.base import NONE, Const, NotConstant, Value, is_none

if TYPE_CHECKING:
    from engine.bytecode.decode import Op
    from engine.trace.state import Frame, Tracer


def run(tx: Tracer, frame: Frame) -> Any:
    """Run a frame until it returns or yields; says which, with the value in ``frame.result``."""
    while True:
        outcome = advance(tx, frame)
        if outcome is not None:
            return outcome


def advance(tx: Tracer, frame: Frame) -> Any:
    """Run one instruction."""
    op = frame.decoded.ops[frame.index]
    frame.op = op
    frame.index += 1
    tx.executed += 1
    frame.begun = tx.executed
    if tx.executed == tx.cut_at:
        tx.cut(frame)
    if tx.executed > config.instruction_budget:
        raise Unsupported("budget", f"{tx.executed} instructions were traced")
    if tx.watch is not None:
        return tx.watch(frame, op, lambda: execute(tx, frame, op))
    return execute(tx, frame, op)


def execute(tx: Tracer, frame: Frame, op: Op) -> Any:
    """Run an instruction's handler; a caught exception of the user's moves the frame to its handler."""
    handler = HANDLERS.get(op.opname)
    if handler is None:
        raise Unsupported("unsupported-opcode", reason(op.opname))
    frame.operands = frame.stack[:]
    try:
        outcome = handler(tx, frame, op)
        if tx.open_generators and outcome is None:
            close_dead(tx, frame)
        return outcome
    except (Unsupported, Skip) as refused:
        if not refused.stack:  # here all frames of the call stand
            refused.stack = tx.spans()
            if isinstance(refused, Unsupported):
                refused.cut = innermost_cut(tx)
        raise
    except NotConstant:
        unknown = Unsupported("unsupported-operation", "a value is needed that is not known while tracing")
        unknown.stack = tx.spans()
        raise unknown from None
    except UserException as error:
        if error.is_new:
            error.is_new = False
            if op.opname != "RERAISE":
                chain(tx, error.value)
        if not find_handler(tx, frame, error.value):
            raise
        return None
    except (TraceSignal, RecursionError, MemoryError):
        raise
    except Exception as error:
        # A defect of ours ends the graph here; the instruction is Python's.
        defect = Unsupported("internal", in_words(error))
        defect.stack = tx.spans()
        raise defect from error


def in_words(error: Exception) -> str:
    """A defect of the tracer, and where it showed."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.filename.rpartition('/')[2]}:{where.lineno})"


def chain(tx: Tracer, error: Value) -> None:
    """A new exception remembers the one that was being handled."""
    from engine.trace.values.exceptions import ExceptionValue, handled

    before = handled(tx)
    if not isinstance(error, ExceptionValue):
        return
    error.line = tx.spans()[0].line
    error.traceback = None
    if not is_none(error.attributes.pop("__traceback__", NONE)):
        raise Skip("unsupported-operation", "an exception with another one's traceback is raised")
    error.was_raised = True
    if before is None or before is error:
        return
    link: Value | None = before
    seen: set[int] = set()
    while isinstance(link, ExceptionValue) and id(link) not in seen:
        seen.add(id(link))
        if link.attributes.get("__context__") is error:
            del link.attributes["__context__"]
            break
        link = link.attributes.get("__context__")
    error.set_attr(tx, "__context__", before)


def find_handler(tx: Tracer, frame: Frame, error: Value) -> bool:
    """Go to the exception handler that covers the current instruction; False where there is none."""
    handler = frame.decoded.handlers[frame.op.index]
    if handler is None:
        return False
    del frame.stack[handler.depth :]
    if handler.push_index:
        frame.push(Const(InstructionOffset(frame.op.offset // 2)))
    frame.push(error)
    frame.index = handler.target
    return True
