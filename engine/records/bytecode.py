"""Records of source files, spans and bytecode instructions."""

from __future__ import annotations

from engine.records.base import Record


class Span(Record):
    """A span of source text; lines count from 1, columns in characters from 0; -1 is unknown."""

    file: str
    line: int
    end_line: int = -1
    column: int = -1
    end_column: int = -1


class SourceFile(Record):
    """A source file that spans refer to.

    ``id`` is the code object's file name, ``name`` the display name ("cell 3").
    """

    id: str
    name: str
    text: str
    first_line: int = 1
    is_withheld: bool = False
    """True if the reader of a log did not ask for the file, which this machine has."""


class Instruction(Record):
    """One bytecode instruction: byte offset, opcode name, argument as ``dis`` prints it."""

    offset: int
    opname: str
    argument: str = ""
    span: Span | None = None
    is_jump_target: bool = False
