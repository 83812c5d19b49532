"""Source spans of instructions, with columns in characters."""

from __future__ import annotations

import ast
import dis
import linecache
from types import CodeType

from engine.interrupts.weak_tables import WeakMemo
from engine.records.bytecode import Span

_MAX_EXPRESSION_LENGTH = 60
_CONDITIONAL_JUMPS = frozenset(code for name, code in dis.opmap.items() if "JUMP" in name and "_IF_" in name)


class _SourcePositions:
    """Source positions of one code object; spans are computed on demand."""

    def __init__(self, code: CodeType) -> None:
        self.positions = tuple(code.co_positions())
        self.spans: dict[int, Span] = {}


_source_positions = WeakMemo(_SourcePositions)


def span_of(code: CodeType, offset: int) -> Span:
    """Return the source span of the instruction at a byte offset; unknown columns are -1."""
    source = _source_positions(code)
    span = source.spans.get(offset)
    if span is None:
        span = source.spans[offset] = _span(code, source.positions, offset)
    return span


def _span(code: CodeType, positions: tuple[tuple[int | None, ...], ...], offset: int) -> Span:
    file = code.co_filename
    line, end_line, column, end_column = _position(code, positions, offset // 2)
    if line is None:
        return Span(file, _last_line_before(code, offset))
    if column is None or end_column is None:
        return Span(file, line, line if end_line is None else end_line)
    return span_in_characters(file, line, line if end_line is None else end_line, column, end_column)


def _position(code: CodeType, positions: tuple[tuple[int | None, ...], ...], index: int) -> tuple[int | None, ...]:
    """Return the position of an instruction; of a jump after ``a and b()``, that of ``b()``.

    Python 3.11 gives such a jump the position of ``a``.
    """
    if index >= len(positions):
        return (None,) * 4
    position = positions[index]
    if not index or code.co_code[2 * index] not in _CONDITIONAL_JUMPS:
        return position
    condition = positions[index - 1]
    ends, starts = (position[1] or 0, position[3] or 0), (condition[0] or 0, condition[2] or 0)
    return condition if position[1] and ends < starts else position


def span_in_characters(file: str, line: int, end_line: int, column: int, end_column: int) -> Span:
    """Return a span, given columns that count bytes of UTF-8."""
    first, last = _column_in_characters(file, line, column), _column_in_characters(file, end_line, end_column)
    return Span(file, line, end_line, first, last)


def expression_text(span: Span | None) -> str:
    """Return the source text of an expression as one line; empty if it is none, or a long one."""
    lines = linecache.getlines(span.file)[span.line - 1 : span.end_line] if span and span.column >= 0 else []
    if not lines or span is None:
        return ""
    lines[-1] = lines[-1][: span.end_column]
    lines[0] = lines[0][span.column :]
    text = " ".join(" ".join(lines).split())
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return ""
    return text if len(text) <= _MAX_EXPRESSION_LENGTH else ""


def _last_line_before(code: CodeType, offset: int) -> int:
    best = code.co_firstlineno
    for start, _, line in code.co_lines():
        if start > offset:
            break
        if line is not None:
            best = line
    return best


def _column_in_characters(file: str, line: int, column: int) -> int:
    """Convert a column in UTF-8 bytes to a column in characters."""
    text = linecache.getline(file, line)
    if not text or text.isascii():
        return column
    return len(text.encode()[:column].decode(errors="ignore"))
