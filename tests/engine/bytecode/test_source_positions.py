"""Source spans of instructions."""

from __future__ import annotations

import dis
import linecache
from typing import Any

from engine.bytecode.decode import decode
from engine.bytecode.source_positions import span_of
from engine.bytecode.to_records import instruction_records
from engine.records.bytecode import Span

TEXT = "def f(x, y):\n    größe = x * 'äöü'; return größe + y.value\n"


def compiled() -> dict[str, object]:
    """The text as a module whose source Python can find."""
    linecache.cache["<spans>"] = (len(TEXT), None, TEXT.splitlines(keepends=True), "<spans>")
    space: dict[str, object] = {}
    exec(compile(TEXT, "<spans>", "exec"), space)
    return space


def test_columns_count_characters() -> None:
    """Letters of more than one byte count once."""
    code = compiled()["f"].__code__  # type: ignore[attr-defined]
    attribute = next(op for op in decode(code).ops if op.opname == "LOAD_ATTR")
    span = span_of(code, attribute.offset)
    line = TEXT.splitlines()[1]
    assert (span.file, span.line) == ("<spans>", 2)
    assert line[span.column : span.end_column] == "y.value"


def test_every_instruction_becomes_a_record() -> None:
    """Records hold offset, name and span, without caches."""
    code = compiled()["f"].__code__  # type: ignore[attr-defined]
    found = instruction_records(code)
    assert [i.opname for i in found] == [op.opname for op in decode(code).ops]
    assert all(isinstance(i.span, Span) for i in found)


def test_a_jump_has_the_span_of_its_condition() -> None:
    """Not that of an operand before it, which Python 3.11 gives."""
    text = "def f(x, y):\n    if y is not None and (x == y).all():\n        return x\n"
    namespace: dict[str, Any] = {}
    exec(compile(text, "<condition>", "exec"), namespace)
    code = namespace["f"].__code__
    jumps = [i for i in dis.get_instructions(code) if "JUMP" in i.opname and "_IF_" in i.opname]
    span = span_of(code, jumps[1].offset)
    assert (span.line, span.column) == (2, 25)
