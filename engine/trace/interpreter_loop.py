"""The interpreter loop: dispatches opcodes, and moves user exceptions to their handlers."""

from __future__ import annotations

import traceback
from typing import Any

from engine.bytecode.opcodes import unsupported_reason
from engine.errors import ConstraintViolation
from engine.interrupts.deferred_interrupts import deferral, deliver_interrupts
from engine.options import config
from engine.trace.annotations import DecodedInstruction, Frame, Tracer
from engine.trace.exc import BreakReason, SkipFrame, TracerException, Unsupported, UserException
from engine.trace.exception_handlers import jump_to_handler, set_exception_context
from engine.trace.finalize_generators import close_unreachable_generators
from engine.trace.graph_breaks.inlined_breakpoints import find_inlined_breakpoint
from engine.trace.opcode_registry import HANDLERS
from engine.trace.symbols.value_names import unknown_value_break
from engine.trace.variables.base import NotPythonConstant


def run_frame(tx: Tracer, frame: Frame) -> Any:
    """Run a frame until it returns or yields.

    Return ``RETURN`` or ``YIELD``; the value is in ``frame.result``.
    """
    while True:
        outcome = run_instruction(tx, frame)
        if outcome is not None:
            return outcome


def run_instruction(tx: Tracer, frame: Frame) -> Any:
    """Trace the next instruction of a frame."""
    if deferral.count:
        deliver_interrupts()
    op = frame.decoded.ops[frame.next_index]
    frame.op = op
    frame.next_index += 1
    counter = tx.instruction_counter
    counter.instruction_count += 1
    frame.instruction_number = counter.instruction_count
    if counter.instruction_count == counter.breakpoint_at:
        counter.on_breakpoint(frame)
    if counter.instruction_count > config.instruction_budget:
        raise Unsupported("budget", f"{counter.instruction_count} instructions were traced")
    if counter.instruction_hook is not None:
        return counter.instruction_hook(frame, op, lambda: dispatch_opcode(tx, frame, op))
    return dispatch_opcode(tx, frame, op)


def dispatch_opcode(tx: Tracer, frame: Frame, op: DecodedInstruction) -> Any:
    """Dispatch an instruction to its handler.

    A user exception that the frame catches moves the frame to its exception handler.
    """
    handler = HANDLERS.get(op.opname)
    if handler is None:
        raise Unsupported("unsupported-opcode", unsupported_reason(op.opname))
    frame.stack_before = frame.stack[:]
    try:
        outcome = handler(tx, frame, op)
        if tx.call_stack.open_generators and outcome is None:
            close_unreachable_generators(tx, frame)
        return outcome
    except (Unsupported, SkipFrame) as graph_break:
        raise _locate(tx, graph_break) from graph_break.__cause__
    except NotPythonConstant as error:
        raise _locate(tx, unknown_value_break(tx, error.variable)) from None
    except UserException as error:
        if error.is_unhandled_yet:
            error.is_unhandled_yet = False
            if op.opname != "RERAISE":
                set_exception_context(tx, error.exception)
        if not jump_to_handler(frame, error.exception):
            raise
        return None
    except (TracerException, ConstraintViolation, RecursionError, MemoryError):
        raise
    except Exception as error:
        # An internal error ends the graph here. Python runs the instruction.
        raise Unsupported("internal", describe_internal_error(error), stack=tx.user_stack()) from error


def _locate(tx: Tracer, reason: BreakReason) -> BreakReason:
    """Record where the reason occurs, unless an inner call did: all its frames are active."""
    if not reason.stack:
        reason.stack, reason.inlined_breakpoint = tx.user_stack(), find_inlined_breakpoint(tx)
    return reason


def describe_internal_error(error: Exception) -> str:
    """Describe an internal error with the file and line where it was raised."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.filename.rpartition('/')[2]}:{where.lineno})"
