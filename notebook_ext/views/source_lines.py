"""Maps records to user source lines, with their names and their order of first use."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Collection
from dataclasses import dataclass, field

from engine.records.bytecode import SourceFile, Span
from engine.records.graph import NodeRecord
from engine.records.session import CompilationRecord, Session
from notebook_ext.views.format_text import one_line

MAX_WHOLE_FILE_LINES = 400
"""Maximum number of lines of a file that is shown whole.

Of a longer file only the lines in use and their surroundings are shown.
"""
CONTEXT_LINES = 8

FileLine = tuple[str, int]
"""File id and line number."""


@dataclass(frozen=True)
class SourceRow:
    """One row of the source pane; ``line`` is 0 for a heading or a count of omitted lines."""

    text: str
    file: str = ""
    line: int = 0


@dataclass(frozen=True)
class NodeSpans:
    """User source behind a graph node.

    ``span`` is the innermost line with its columns; ``callers`` are the lines that called it, outermost
    first.
    """

    span: Span | None
    callers: tuple[Span, ...] = ()


@dataclass
class LineOrdinals:
    """Numbers of source lines in order of first use.

    A line has the same number and color in every view.
    """

    numbers: dict[FileLine, int] = field(default_factory=dict)

    def add(self, span: Span) -> None:
        """Assign the next number to the span's line if it has none."""
        self.numbers.setdefault((span.file, span.line), len(self.numbers) + 1)

    def of(self, span: Span | None) -> int:
        """Return the number of the span's line; 0 if it has none."""
        return self.numbers.get((span.file, span.line), 0) if span else 0


def node_spans(node: NodeRecord, files: Collection[str]) -> NodeSpans:
    """Return the spans of a node that are in known files."""
    span = node.span
    if span is not None and node.stack == (span,):  # The usual case: only the innermost line was recorded.
        return NodeSpans(span) if span.file in files else NodeSpans(None)
    known = files if isinstance(files, (set, frozenset)) else set(files)
    spans = [s for s in node.stack if s.file in known]
    if node.span is not None and node.span.file in known and (not spans or spans[-1] != node.span):
        spans.append(node.span)
    return NodeSpans(spans[-1], tuple(spans[:-1])) if spans else NodeSpans(None)


_ordinals_cache: weakref.WeakKeyDictionary[Session, dict[str, tuple[CompilationRecord, int, LineOrdinals]]] = (
    weakref.WeakKeyDictionary()
)
"""Ordinals by session and compilation, with the record and file count that they depend on.

A record that was replaced is numbered again.
"""


def ordinals(session: Session, compilation: CompilationRecord) -> LineOrdinals:
    """Return the numbers of the source lines that one compilation uses."""
    known = _ordinals_cache.setdefault(session, {})
    files = {f.id for f in session.files}
    made = known.get(compilation.id)
    if made is None or made[0] is not compilation or made[1] != len(files):
        made = known[compilation.id] = (compilation, len(files), _ordinals(compilation, files))
    return made[2]


def _ordinals(compilation: CompilationRecord, files: set[str]) -> LineOrdinals:
    found = LineOrdinals()
    for graph in compilation.graphs:
        for node in graph.nodes:
            places = node_spans(node, files)
            for span in (*places.callers, *([places.span] if places.span else [])):
                found.add(span)
    return found


@functools.lru_cache(maxsize=64)
def _lines(text: str) -> list[str]:
    return text.splitlines()


def source_line(session: Session, span: Span | None) -> str:
    """Return the text of the span's line without indentation; empty if unknown."""
    return line_text(session, span.file, span.line) if span is not None else ""


def line_text(session: Session, file: str, line: int) -> str:
    """Return one line of a file without indentation; empty if unknown."""
    for known in session.files:
        if known.id == file:
            lines = _lines(known.text)
            index = line - known.first_line
            return lines[index].strip() if 0 <= index < len(lines) else ""
    return ""


def snippet(session: Session, span: Span | None) -> str:
    """Return the text under the span if its columns are known, else its whole line."""
    if span is None:
        return ""
    for file in session.files:
        if file.id == span.file:
            lines = _lines(file.text)
            index = span.line - file.first_line
            if not 0 <= index < len(lines):
                return ""
            line = lines[index]
            if 0 <= span.column < span.end_column and span.end_line in (-1, span.line):
                return line[span.column : span.end_column]
            return line[max(span.column, 0) :].strip()
    return ""


def file_name(session: Session, id: str) -> str:
    """Return the display name of a file: its given name, else the last part of its path."""
    for file in session.files:
        if file.id == id:
            return file.name
    return id.replace("\\", "/").rsplit("/", 1)[-1]


def frame_name(session: Session, frame: str, limit: int = 60) -> str:
    """Return the display name of a frame: its function; its id if unknown.

    A resume function also has the line of its graph break.
    """
    found = next((f for f in session.frames if f.id == frame), None)
    if found is None:
        return one_line(frame, limit)
    after = found.resumes_after
    is_told = " (from line " in found.name or " after line " in found.name
    rest = f" after line {after.line}" if after is not None and not is_told else ""
    return one_line(found.name, limit - len(rest)) + rest


def line_name(session: Session, span: Span | None) -> str:
    """Return ``line 14``, with several files ``line 14 of cell 3``; empty if unknown."""
    if span is None:
        return ""
    return f"line {span.line}" if len(session.files) <= 1 else f"line {span.line} of {file_name(session, span.file)}"


def source_rows(session: Session, used: set[FileLine], first: str) -> list[SourceRow]:
    """Return the lines of all files in ``used``, with headings between files.

    The file ``first`` comes before the others.
    """
    wanted = [f for f in session.files if any(file == f.id for file, _ in used)]
    wanted.sort(key=lambda f: f.id != first)
    rows: list[SourceRow] = []
    for file in wanted:
        if len(wanted) > 1:
            rows.append(SourceRow(file.name))
        rows.extend(_file_rows(file, {line for id, line in used if id == file.id}))
    return rows


def _file_rows(file: SourceFile, used: set[int]) -> list[SourceRow]:
    lines = file.text.splitlines()
    if len(lines) <= MAX_WHOLE_FILE_LINES:
        return [SourceRow(text, file.id, file.first_line + i) for i, text in enumerate(lines)]
    kept = {line + d for line in used for d in range(-CONTEXT_LINES, CONTEXT_LINES + 1)}
    rows: list[SourceRow] = []
    skipped = 0
    for i, text in enumerate(lines):
        line = file.first_line + i
        if line not in kept:
            skipped += 1
            continue
        if skipped:
            rows.append(SourceRow(f"… {skipped:,} lines that are not used in this compilation"))
            skipped = 0
        rows.append(SourceRow(text, file.id, line))
    if skipped:
        rows.append(SourceRow(f"… {skipped:,} lines that are not used in this compilation"))
    return rows
