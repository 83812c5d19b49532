"""Decodes code objects: indexed instructions, jump targets as indexes, exception handlers."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from engine.interrupts.weak_tables import WeakMemo


@dataclass(slots=True, frozen=True, eq=False)
class DecodedInstruction:
    """One instruction without caches and EXTENDED_ARG; ``target``: jump target index or -1."""

    index: int
    offset: int
    opname: str
    arg: int
    argval: Any
    argrepr: str
    target: int
    is_target: bool


@dataclass(slots=True, frozen=True)
class ExceptionHandler:
    """Exception handler: target index, stack depth to unwind to, and if it pushes ``lasti``."""

    target: int
    depth: int
    pushes_lasti: bool


@dataclass(slots=True, frozen=True, eq=False)
class DecodedCode:
    """All instructions of a code object; ``handlers[i]`` covers instruction i."""

    ops: tuple[DecodedInstruction, ...]
    handlers: tuple[ExceptionHandler | None, ...]
    index_of: dict[int, int]
    """Instruction index by byte offset, including the offsets of EXTENDED_ARG."""


def decode(code: CodeType) -> DecodedCode:
    """Decode ``code``; memoized per code object."""
    return _decoded(code)


def _decode(code: CodeType) -> DecodedCode:
    raw = [i for i in dis.get_instructions(code) if i.opname != "CACHE"]
    index_of: dict[int, int] = {}
    instructions: list[dis.Instruction] = []
    for instruction in raw:
        index_of[instruction.offset] = len(instructions)
        if instruction.opname != "EXTENDED_ARG":
            instructions.append(instruction)
    jumps = set(dis.hasjrel) | set(dis.hasjabs)
    targets = {n: index_of[i.argval] for n, i in enumerate(instructions) if i.opcode in jumps}
    landed = set(targets.values())
    ops = tuple(
        DecodedInstruction(
            n,
            i.offset,
            i.opname,
            i.arg if i.arg is not None else 0,
            i.argval,
            i.argrepr,
            targets.get(n, -1),
            n in landed,
        )
        for n, i in enumerate(instructions)
    )
    return DecodedCode(ops, _handlers(code, ops, index_of), index_of)


_decoded = WeakMemo(_decode)


def _handlers(
    code: CodeType, ops: tuple[DecodedInstruction, ...], index_of: dict[int, int]
) -> tuple[ExceptionHandler | None, ...]:
    handlers: list[ExceptionHandler | None] = [None] * len(ops)
    for start, end, target, depth, push in exception_table(code):
        handler = ExceptionHandler(index_of[target], depth, push)
        for n in range(index_of[start], len(ops)):
            if ops[n].offset >= end:
                break
            handlers[n] = handler
    return tuple(handlers)


_CLEANUP_OPCODES = frozenset(
    "COPY SWAP POP_TOP POP_EXCEPT LOAD_CONST STORE_FAST STORE_FAST_MAYBE_NULL DELETE_FAST STORE_FAST_LOAD_FAST".split()
)
"""Opcodes of CPython's cleanup handlers, which restore the stack and locals and reraise."""


_STOP_ITERATION_ERROR = "INTRINSIC_STOPITERATION_ERROR"
"""Argument of CALL_INTRINSIC_1 in the handler that each generator has since 3.12."""


def reraise_index(decoded: DecodedCode, target: int) -> int:
    """Return the index of RERAISE in a handler that only cleans up; -1 if it does more."""
    for op in decoded.ops[target:]:
        if op.opname == "RERAISE":
            return op.index
        if op.opname not in _CLEANUP_OPCODES and op.argrepr != _STOP_ITERATION_ERROR:
            break
    return -1


def exception_table(code: CodeType) -> Iterator[tuple[int, int, int, int, bool]]:
    """Yield (start, end, target, depth, pushes lasti); offsets in bytes, ``end`` exclusive."""
    data = iter(code.co_exceptiontable)
    for first in data:
        start = _varint(data, first) * 2
        length = _varint(data, next(data)) * 2
        target = _varint(data, next(data)) * 2
        depth_push = _varint(data, next(data))
        yield start, start + length, target, depth_push >> 1, bool(depth_push & 1)


def _varint(data: Iterator[int], byte: int) -> int:
    value = byte & 63
    while byte & 64:
        byte = next(data)
        value = value << 6 | byte & 63
    return value
