"""Source spans of instructions."""

from __future__ import annotations

import linecache

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
