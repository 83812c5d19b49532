"""Code objects as editable instructions, each with its index in ``decode``."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType
from typing import Any

from bytecode import Bytecode, Instr, Label
from bytecode.instr import CellVar, FreeVar, TryBegin, TryEnd

from engine.bytecode.decode import decode
from engine.bytecode.opcodes import RULES, VERSION
from engine.interrupts.weak_tables import WeakTable

EditableItem = Instr | Label | TryBegin | TryEnd

_PARTS = {
    "LOAD_FAST_BORROW": ("LOAD_FAST",),
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}
"""Instructions that are edited as one or two simpler ones.

Pairs of CPython 3.13 and later: an operand has four bits, maybe too few for new variables. Borrowed loads of 3.14: they
are right only where the compiler proved that the variable outlives the value on the stack.
"""


_MAX_RECENT = 8
_recent: WeakTable[CodeType, tuple[tuple[EditableItem, int], ...]] = WeakTable()
"""Items of the last codes.

A frame with a graph break reads its own four times, and each recompile again.
"""


class _Interpolation(Instr):
    """BUILD_INTERPOLATION with an integer operand.

    The package's own operand, a pair, has no conversion and cannot be assembled.
    """

    def _check_arg(self, name: str, opcode: int, arg: Any) -> None:
        pass


def editable_bytecode(code: CodeType) -> Bytecode:
    """Return ``code`` as a list of instructions. Handlers preserve their stack depths."""
    built = [op for op in decode(code).ops if op.opname == "BUILD_INTERPOLATION"]
    text = bytearray(code.co_code)
    for op in built:
        text[op.offset + 1] = 2  # the package cannot read the operand of a conversion
    read = Bytecode.from_code(
        code.replace(co_code=bytes(text)) if built else code, conserve_exception_block_stackdepth=True
    )
    interpolations = [(n, i) for n, i in enumerate(read) if isinstance(i, Instr) and i.name == "BUILD_INTERPOLATION"]
    for (n, item), op in zip(interpolations, built, strict=True):
        read[n] = _Interpolation(op.opname, op.arg, location=item.location)
    return read


def editable_instructions(code: CodeType) -> tuple[tuple[EditableItem, int], ...]:
    """Return instructions, labels and try ranges of ``code`` in order, each with an index.

    The index is that of the instruction, or of the instruction that follows a label or range. Handlers preserve their
    stack depths. A fused pair becomes two instructions with the same index. Callers share the items: change none.
    """
    found = _recent.get(code)
    if found is None:
        if len(_recent) >= _MAX_RECENT:
            _recent.clear()
        found = _recent[code] = tuple(_read_items(code))
    return found


def _read_items(code: CodeType) -> Iterator[tuple[EditableItem, int]]:
    index = 0
    for item in editable_bytecode(code):
        if isinstance(item, Instr):
            for part in _simplify(item):
                yield part, index
            index += 1
        elif isinstance(item, (Label, TryBegin, TryEnd)):
            yield item, index


def _simplify(item: Instr) -> list[Instr]:
    parts = _PARTS.get(item.name)
    if parts is None:
        return [item]
    args: tuple[Any, ...] = item.arg if isinstance(item.arg, tuple) else (item.arg,)
    return [Instr(part, arg, location=item.location) for part, arg in zip(parts, args, strict=True)]


def resume_index(code: CodeType) -> int:
    """Return the index of RESUME.

    Cells are created before it. A later MAKE_CELL belongs to a comprehension.
    """
    return next(op.index for op in decode(code).ops if op.opname == "RESUME")


def cells_as_free_variables(item: Instr, cells: frozenset[str]) -> Instr:
    """Return an instruction for a function that has the code's ``cells`` as free variables."""
    arg = item.arg
    if isinstance(arg, CellVar):
        return Instr(item.name, FreeVar(arg.name), location=item.location)
    if RULES.cell_load == "LOAD_FAST" and isinstance(arg, str) and arg in cells and item.opcode in dis.haslocal:
        return Instr(item.name, FreeVar(arg), location=item.location)
    return item


def fix_free_variable_slots(code: CodeType, cells: frozenset[str]) -> CodeType:
    """Make instructions on local variables with these names use the free variables.

    Needed on 3.12, whose comprehensions swap cells that way.

    Raises:
        ValueError: There are too many variables for a one-byte operand.
    """
    free_cells = cells.intersection(code.co_freevars)
    if VERSION != (3, 12) or not free_cells:
        return code
    first = len(code.co_varnames) + sum(name not in code.co_varnames for name in code.co_cellvars)
    text = bytearray(code.co_code)
    for op in decode(code).ops:
        if dis.opmap[op.opname] in dis.haslocal and op.argval in free_cells:
            slot = first + code.co_freevars.index(op.argval)
            if slot > 255 or op.arg > 255:
                raise ValueError("too many variables")
            text[op.offset + 1] = slot
    return code.replace(co_code=bytes(text)) if bytes(text) != code.co_code else code
