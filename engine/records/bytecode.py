"""What is known of the user's code before it runs: files, spans and instructions."""

from __future__ import annotations

from dataclasses import dataclass

from engine.records.base import Record


@dataclass(frozen=True, slots=True)
class Span(Record):
    """A piece of source text. Lines count from 1, columns from 0 in characters; -1 where Python does not know."""

    file: str
    line: int
    end_line: int = -1
    column: int = -1
    end_column: int = -1


@dataclass(frozen=True, slots=True)
class SourceFile(Record):
    """The text that spans point into. ``id`` is the code object's file name, ``name`` what a person calls it ("cell 3")."""

    id: str
    name: str
    text: str
    first_line: int = 1


@dataclass(frozen=True, slots=True)
class Instruction(Record):
    """One bytecode instruction: byte offset, opcode name, argument as ``dis`` shows it."""

    offset: int
    opname: str
    argument: str = ""
    span: Span | None = None
    is_jump_target: bool = False
