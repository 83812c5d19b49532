"""Records of bytecode instructions."""

from __future__ import annotations

from types import CodeType

from engine.bytecode.decode import decode
from engine.bytecode.source_positions import span_of
from engine.records.bytecode import Instruction


def instruction_records(code: CodeType) -> tuple[Instruction, ...]:
    """Return all instructions of ``code`` as records, without caches and EXTENDED_ARG."""
    return tuple(
        Instruction(
            op.offset,
            op.opname,
            op.argrepr or _argument_text(op.opname, op.arg),
            span_of(code, op.offset),
            op.is_target,
        )
        for op in decode(code).ops
    )


def _argument_text(opname: str, arg: int) -> str:
    without = opname.startswith(("POP_TOP", "RETURN_VALUE", "NOP", "PUSH_", "UNARY_", "BINARY_SUBSCR", "GET_ITER"))
    return "" if without else str(arg)
