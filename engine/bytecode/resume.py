"""Resume functions: the rest of a function from one instruction on, as a function of the stack and the live locals there."""

from __future__ import annotations

import inspect
import weakref
from dataclasses import dataclass
from types import CodeType

from bytecode import Bytecode, CompilerFlags, Instr, Label
from bytecode.instr import CellVar, FreeVar, InstrLocation, TryBegin, TryEnd

from engine.bytecode.decode import decode

NULL = "null"
VALUE = "value"
HANDLED = "handled"
"""Where CPython keeps the exception that was handled before: the parameter is the exception that is being handled from here on."""


class InstructionOffset(int):
    """Where an exception was raised, in code units, as exception handlers find it on the stack."""


@dataclass(frozen=True)
class Point:
    """Where a resume function goes on: instruction ``index`` of ``code``, with this stack (bottom first) and locals.

    A place on the stack is ``VALUE``, ``NULL``, ``HANDLED``, or an int: the offset of the instruction of that index.
    """

    index: int
    stack: tuple[str | int, ...]
    locals: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Resumed:
    """What a resume function's code was made from: instruction i of it is instruction i - ``shift`` of ``base``."""

    base: CodeType
    shift: int
    index: int


_made: weakref.WeakKeyDictionary[CodeType, dict[tuple[str, Point], CodeType]] = weakref.WeakKeyDictionary()
_bases: dict[int, tuple[weakref.ref[CodeType], Resumed]] = {}


def resumed(code: CodeType) -> Resumed | None:
    """How ``code`` was made, if it is a resume function's."""
    known = _bases.get(id(code))
    return known[1] if known is not None and known[0]() is code else None


def stack_names(point: Point) -> tuple[str, ...]:
    """Parameters that carry the stack, bottom first."""
    return tuple(f"__stack_{n}" for n, kind in enumerate(point.stack) if kind in (VALUE, HANDLED))


def resume_code(code: CodeType, point: Point) -> CodeType:
    """The code of the resume function; one object per point, so that compiles of one frame share its cache.

    Its parameters are the stack's values, then ``point.locals``. Cells and free variables of ``code`` are its free variables, in the
    order ``co_cellvars + co_freevars``.
    """
    made = _made.setdefault(code, {})
    key = (code.co_filename, point)
    if key not in made:
        made[key] = _build(code, point)
    return made[key]


def free_names(code: CodeType) -> tuple[str, ...]:
    """Names of the cells that a resume function of ``code`` shares with it."""
    return (*code.co_cellvars, *code.co_freevars)


def _build(code: CodeType, point: Point) -> CodeType:
    known = resumed(code)
    base, index = (code, point.index) if known is None else (known.base, point.index - known.shift)
    source = Bytecode.from_code(base, conserve_exception_block_stackdepth=True)
    label = Label()
    body = _body(source, index, label)
    result = Bytecode()
    free = free_names(code)
    stack = stack_names(point)
    prefix = _prefix(point, label, free, _location(source, index))
    result.extend([*prefix, *body])
    result.argnames = [*stack, *point.locals]
    result.argcount = len(result.argnames)
    result.name = base.co_name
    result.qualname = base.co_qualname
    result.filename = base.co_filename
    result.first_lineno = base.co_firstlineno
    result.freevars = list(free)
    result.flags = CompilerFlags(
        base.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) | (inspect.CO_NESTED if free else 0)
    )
    shift = len(prefix) - _dropped(base)
    # The body's own depths hold: the assembler's search starts at the first instruction and does not see the middle of a block.
    depth = max(base.co_stacksize, len(point.stack) + 1)
    assembled = result.to_code(stacksize=depth, compute_exception_stack_depths=False)
    made = _place_offsets(assembled, shift - (known.shift if known else 0))
    real = id(made)
    _bases[real] = (weakref.ref(made, lambda _: _bases.pop(real, None)), Resumed(base, shift, index))
    return made


def _prefix(point: Point, label: Label, free: tuple[str, ...], location: InstrLocation | None) -> list[Instr]:
    prefix = [Instr("COPY_FREE_VARS", len(free), location=location)] if free else []
    prefix.append(Instr("RESUME", 0, location=location))
    for n, kind in enumerate(point.stack):
        if kind == NULL:
            prefix.append(Instr("PUSH_NULL", location=location))
        elif isinstance(kind, int):
            prefix.append(Instr("LOAD_CONST", InstructionOffset(kind), location=location))
        else:
            prefix.append(Instr("LOAD_FAST", f"__stack_{n}", location=location))
        if kind == HANDLED:
            prefix.extend([Instr("PUSH_EXC_INFO", location=location), Instr("POP_TOP", location=location)])
    prefix.append(Instr("JUMP_FORWARD", label, location=location))
    return prefix


def _place_offsets(made: CodeType, shift: int) -> CodeType:
    """Turn indices of the broken code's instructions into offsets of this code's own."""
    if not any(type(c) is InstructionOffset for c in made.co_consts):
        return made
    ops = decode(made).ops
    consts = tuple(
        InstructionOffset(ops[c + shift].offset // 2) if type(c) is InstructionOffset else c for c in made.co_consts
    )
    return made.replace(co_consts=consts)


def _dropped(base: CodeType) -> int:
    """How many instructions ``_body`` leaves out: those that set up cells."""
    return len(base.co_cellvars) + (1 if base.co_freevars else 0)


def _body(source: Bytecode, index: int, label: Label) -> list[Instr | Label | TryBegin | TryEnd]:
    body: list[Instr | Label | TryBegin | TryEnd] = []
    n = 0
    for item in source:
        if isinstance(item, Instr):
            if n == index:
                body.append(label)
            n += 1
            if item.name in ("MAKE_CELL", "COPY_FREE_VARS"):
                continue
            if isinstance(item.arg, CellVar):
                item = Instr(item.name, FreeVar(item.arg.name), location=item.location)
        if isinstance(item, (Instr, Label, TryBegin, TryEnd)):
            body.append(item)
    return body


def _location(source: Bytecode, index: int) -> InstrLocation | None:
    found = [i for i in source if isinstance(i, Instr)]
    return found[index].location if index < len(found) else None
