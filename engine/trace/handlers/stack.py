"""Handlers of stack opcodes, cells, no-ops and returns."""

from __future__ import annotations

from typing import Any

from engine.bytecode.editable_instructions import resume_index
from engine.trace.annotations import DecodedInstruction, Frame, Tracer
from engine.trace.opcode_registry import RETURN, handles
from engine.trace.variables.base import NULL, ConstantVariable
from engine.trace.variables.callables.cells import CellVariable


@handles("NOP", "NOT_TAKEN", "RESUME", "PRECALL", "CACHE", "EXTENDED_ARG", "COPY_FREE_VARS")
def _no_effect(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    return None


@handles("POP_TOP", "END_FOR", "POP_ITER")
def _pop(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    frame.stack.pop()


@handles("PUSH_NULL")
def _push_null(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    frame.push(NULL)


@handles("COPY")
def _copy(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    frame.push(frame.stack[-op.arg])


@handles("SWAP")
def _swap(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    stack = frame.stack
    stack[-1], stack[-op.arg] = stack[-op.arg], stack[-1]


@handles("KW_NAMES")
def _kw_names(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    frame.kw_names = frame.code.co_consts[op.arg]


@handles("MAKE_CELL")
def _make_cell(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    name = str(op.argval)
    # MAKE_CELL after RESUME creates the cell of a comprehension variable.
    # Generated code cannot reach that cell by this name.
    is_own = frame.is_root and op.index < resume_index(frame.code)
    root_name = name if is_own else ""
    frame.cells[name] = CellVariable(frame.locals.pop(name, None), root_frame_name=root_name)


@handles("RETURN_VALUE")
def _return(tx: Tracer, frame: Frame, op: DecodedInstruction) -> Any:
    frame.result = frame.stack.pop()
    return RETURN


@handles("RETURN_CONST")
def _return_const(tx: Tracer, frame: Frame, op: DecodedInstruction) -> Any:
    frame.result = tx.from_python(op.argval) if not isinstance(op.argval, ConstantVariable) else op.argval
    return RETURN
