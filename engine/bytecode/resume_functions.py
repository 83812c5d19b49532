"""Resume functions: the rest of a function, with its stack and live locals as parameters."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import CodeType

from bytecode import Bytecode, CompilerFlags, Instr, Label
from bytecode.instr import InstrLocation, TryBegin, TryEnd

from engine.bytecode.decode import DecodedCode, decode
from engine.bytecode.editable_instructions import (
    EditableItem,
    cells_as_free_variables,
    editable_instructions,
    fix_free_variable_slots,
    resume_index,
)
from engine.bytecode.opcodes import CALL_PREFIX_OPS, CO_HAS_DOCSTRING, RULES
from engine.interrupts.weak_tables import WeakMemo, WeakTable

NULL = "null"
INITIAL_YIELD = "nothing"
"""Stack kind: the None that a generator which starts at a ``yield`` yields first."""
VALUE = "value"
NOT_STARTED = "__is_fresh"
"""Local of generators that start at a ``yield``: True until the body runs on from there."""
HANDLED_EXCEPTION = "handled"
"""Stack kind: CPython's slot for the previously handled exception.

The parameter for it is the exception that is handled from here on.
"""


class InstructionOffset(int):
    """Code-unit offset at which an exception was raised; handlers find it on the stack."""


class StopToken:
    """Token that ends a generator if sent to the ``yield`` at which the generator starts.

    Nothing of the body runs. Each code object has its own token.
    """

    __slots__ = ("code",)

    def __init__(self) -> None:
        self.code: weakref.ref[CodeType] | None = None


@dataclass(frozen=True)
class ResumePoint:
    """Start of a resume function: instruction ``index``, stack (bottom first) and locals.

    A stack entry is ``VALUE``, ``NULL``, ``INITIAL_YIELD``, ``HANDLED_EXCEPTION``, or an int: the offset of the
    instruction with that index. ``super_argument`` names the parameter that must be the first because ``super()`` reads
    it; it is not in ``locals``. ``is_inlined_break``: Python runs the instruction itself. A graph break happened there
    while the caller inlined this code.
    """

    index: int
    stack: tuple[str | int, ...]
    locals: tuple[str, ...]
    super_argument: str = ""
    is_inlined_break: bool = False


@dataclass(frozen=True, eq=False)
class ResumeInfo:
    """Map of a resume function: instruction i is instruction ``indices[i]`` of ``base_code``.

    -1 marks added instructions, except one that stands for the instruction at which an exception was raised.
    The function starts at instruction ``index`` of the base.
    """

    base_code: weakref.ref[CodeType]
    indices: tuple[int, ...]
    index: int
    is_inlined_break: bool = False


_resume_codes: WeakMemo[CodeType, dict[ResumePoint, weakref.ref[CodeType]]] = WeakMemo(lambda code: {})
_resume_infos: WeakTable[CodeType, ResumeInfo] = WeakTable()


def resume_info(code: CodeType) -> ResumeInfo | None:
    """Return the ``ResumeInfo`` of ``code``; None if it is no resume function."""
    return _resume_infos.get(code)


def stack_parameters(point: ResumePoint) -> tuple[str, ...]:
    """Return the parameters that carry the stack, bottom first."""
    return tuple(f"__stack_{n}" for n, kind in enumerate(point.stack) if kind in (VALUE, HANDLED_EXCEPTION))


def super_argument_name(code: CodeType) -> str:
    """Return the parameter that a zero-argument ``super()`` reads; empty if there is none."""
    calls = "super" in code.co_names and "__class__" in (*code.co_freevars, *code.co_cellvars) and code.co_argcount
    return code.co_varnames[0] if calls else ""


def resume_code(code: CodeType, point: ResumePoint) -> CodeType:
    """Return the code of the resume function for a point.

    Each point has one code object as long as anything references it, so that compilations of one frame share its cache.
    The parameters are ``point.super_argument``, the stack values, then ``point.locals``. Cells and free variables of
    ``code`` are the free variables, in the order ``co_cellvars + co_freevars``.
    A graph break in a resume function resumes in the same code as its base would: iterations of a loop share one cache.
    """
    code, point = _rebase(code, point)
    codes = _resume_codes(code)
    reference = codes.get(point)
    code_at_point = None if reference is None else reference()
    if code_at_point is None:
        code_at_point = _build_resume_code(code, point)
        codes[point] = weakref.ref(code_at_point)
    return code_at_point


def _rebase(code: CodeType, point: ResumePoint) -> tuple[CodeType, ResumePoint]:
    """Return the same point in the base code, if the base has the same cells."""
    info = resume_info(code)
    base = None if info is None else info.base_code()
    if info is None or base is None or shared_cell_names(base) != shared_cell_names(code):
        return code, point
    stack = tuple(info.indices[kind] if isinstance(kind, int) else kind for kind in point.stack)
    return base, replace(point, index=info.indices[point.index], stack=stack)


def shared_cell_names(code: CodeType) -> tuple[str, ...]:
    """Return the names of the cells that a resume function of ``code`` shares with it."""
    return (*code.co_cellvars, *code.co_freevars)


def stop_token_of(code: CodeType) -> StopToken | None:
    """Return the stop token of a generator that starts at a ``yield``; None for other code."""
    return next((const for const in code.co_consts if type(const) is StopToken), None)


def _build_resume_code(code: CodeType, point: ResumePoint) -> CodeType:
    info = resume_info(code)
    base = code if info is None else info.base_code()
    if base is None:  # the user's function was freed; its resume function contains all of it
        info, base = None, code
    index = point.index if info is None else info.indices[point.index]
    own = frozenset(base.co_cellvars)
    label = Label()
    free = shared_cell_names(code)
    is_generator = bool(base.co_flags & inspect.CO_GENERATOR)
    stop_token = StopToken() if is_generator else None
    prefix, indices = _prefix(point, label, free, partial(_location, base), index, info)
    body, body_indices = _body(base, index, label, stop_token)
    indices += body_indices
    result = Bytecode([*prefix, *body])
    result.argnames = [
        *((point.super_argument,) if point.super_argument else ()),
        *stack_parameters(point),
        *point.locals,
    ]
    result.argcount = len(result.argnames)
    result.name = base.co_name
    result.qualname = base.co_qualname
    result.filename = base.co_filename
    result.first_lineno = base.co_firstlineno
    result.freevars = list(free)
    result.flags = CompilerFlags(
        base.co_flags & ~CO_HAS_DOCSTRING & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
        | (inspect.CO_NESTED if free else 0)
    )
    # Use the body's depths: the assembler searches from the first instruction and misses blocks entered in the middle.
    depth = max(base.co_stacksize + 2 * is_generator, len(point.stack) + 1)
    assembled = fix_free_variable_slots(result.to_code(stacksize=depth, compute_exception_stack_depths=False), own)
    resume = _relocate_offsets(assembled, info, indices)
    _resume_infos[resume] = ResumeInfo(weakref.ref(base), indices, index, point.is_inlined_break)
    if stop_token is not None:
        stop_token.code = weakref.ref(resume)
    return resume


def _prefix(
    point: ResumePoint,
    label: Label,
    free: tuple[str, ...],
    locate: Callable[[int], InstrLocation | None],
    index: int,
    info: ResumeInfo | None,
) -> tuple[list[EditableItem], tuple[int, ...]]:
    """Return the instructions up to the jump to ``label``, and their indices in ``base_code``."""
    location, raised_at = locate(index), dict[int, int]()
    prefix: list[EditableItem] = [Instr("COPY_FREE_VARS", len(free), location=location)] if free else []
    if INITIAL_YIELD in point.stack:
        prefix += [Instr("RETURN_GENERATOR", location=location), Instr("POP_TOP", location=location)]
        prefix += [Instr("LOAD_CONST", True, location=location), Instr("STORE_FAST", NOT_STARTED, location=location)]
    prefix.append(Instr("RESUME", 0, location=location))
    for n, kind in enumerate(point.stack):
        if kind == NULL:
            prefix.append(Instr("PUSH_NULL", location=location))
        elif kind == INITIAL_YIELD:
            prefix.append(Instr("LOAD_CONST", None, location=location))
        elif isinstance(kind, int) and RULES.offsets_are_raw:
            at = kind if info is None else info.indices[kind]
            raising = Instr("RAISE_VARARGS", 1, location=locate(at))
            prefix += _push_raw_offset(n, raising)
            raised_at[id(raising)] = at
        elif isinstance(kind, int):
            prefix.append(Instr("LOAD_CONST", InstructionOffset(kind), location=location))
        else:
            prefix.append(Instr("LOAD_FAST", f"__stack_{n}", location=location))
        if kind == HANDLED_EXCEPTION:
            prefix.extend([Instr("PUSH_EXC_INFO", location=location), Instr("POP_TOP", location=location)])
    prefix.append(Instr("JUMP_FORWARD", label, location=location))
    return prefix, tuple(raised_at.get(id(item), -1) for item in prefix if isinstance(item, Instr))


def _push_raw_offset(depth: int, raising: Instr) -> list[EditableItem]:
    """Raise and drop an exception, so that the offset of ``raising`` is left on the stack."""
    handler, location = Label(), raising.location
    begin = TryBegin(handler, push_lasti=True, stack_depth=depth)
    load = Instr("LOAD_CONST", RuntimeError, location=location)
    return [begin, load, raising, TryEnd(begin), handler, Instr("POP_TOP", location=location)]


def _relocate_offsets(resume: CodeType, info: ResumeInfo | None, indices: tuple[int, ...]) -> CodeType:
    """Convert instruction indexes of the broken code to offsets in this code."""
    if not any(type(c) is InstructionOffset for c in resume.co_consts):
        return resume
    ops = decode(resume).ops
    first = {base: n for n, base in reversed(list(enumerate(indices)))}

    def placed(const: object) -> object:
        if type(const) is not InstructionOffset:
            return const
        return InstructionOffset(ops[first[const if info is None else info.indices[const]]].offset // 2)

    return resume.replace(co_consts=tuple(map(placed, resume.co_consts)))


def _body(
    base: CodeType, index: int, label: Label, stop_token: StopToken | None
) -> tuple[list[EditableItem], tuple[int, ...]]:
    """Return the instructions after cell creation, and the index in ``base`` of each.

    ``label`` precedes instruction ``index``. With ``stop_token``, that instruction is a ``yield``, and a check of the value
    that is sent to it follows.
    """
    body: list[EditableItem] = []
    indices: list[int] = []
    start, cells = resume_index(base), frozenset(base.co_cellvars)
    label_is_due = True
    for item, n in editable_instructions(base):
        if not isinstance(item, Instr):
            body.append(item)
            continue
        if n < start and item.name in ("MAKE_CELL", "COPY_FREE_VARS"):
            continue
        if n == index and label_is_due:
            body.append(label)
            label_is_due = False
        body.append(cells_as_free_variables(item, cells))
        indices.append(n)
        if stop_token is not None and n == index + 1:  # the RESUME that follows each ``yield``
            added = _stop_check(stop_token, item.location)
            body.extend(added)
            indices.extend(-1 for part in added if isinstance(part, Instr))
    return body, tuple(indices)


def _stop_check(stop_token: StopToken, location: InstrLocation | None) -> list[EditableItem]:
    """Emit a check: return past all handlers if the stop token was sent, else mark the start."""
    goes_on = Label()
    return [
        Instr("COPY", 1, location=location),
        Instr("LOAD_CONST", stop_token, location=location),
        Instr("IS_OP", 0, location=location),
        Instr(RULES.jump_if_false[-1], goes_on, location=location),
        Instr("LOAD_CONST", None, location=location),
        Instr("RETURN_VALUE", location=location),
        goes_on,
        Instr("LOAD_CONST", False, location=location),
        Instr("STORE_FAST", NOT_STARTED, location=location),
    ]


def _location(base: CodeType, index: int) -> InstrLocation | None:
    instructions = [item for item, n in editable_instructions(base) if isinstance(item, Instr) and n == index]
    return instructions[0].location if instructions else None


def broken_instruction_index(code: CodeType, decoded: DecodedCode) -> int | None:
    """Return the index of the broken instruction at which a resume function starts, or None.

    Python runs this instruction.
    """
    info = resume_info(code)
    if info is None or not info.is_inlined_break:
        return None
    index = info.indices.index(info.index)
    while decoded.ops[index].opname in CALL_PREFIX_OPS:
        index += 1
    return index
