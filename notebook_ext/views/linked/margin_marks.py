"""Marks beside the user's lines: graph breaks, recompiles, and the cost of kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine.interrupts.weak_tables import WeakTable
from engine.ir.user_code_files import is_installed_file
from engine.records.bytecode import SourceFile
from engine.records.counts import RootGroup, breaks_of, errors_of, groups, nodes_by_id, recompiles_of
from engine.records.format_amounts import format_bytes
from engine.records.session import CompilationRecord, Session
from notebook_ext.views import source_lines
from notebook_ext.views.format_text import one_line, pluralize


@dataclass
class LineMark:
    """Facts of one source line.

    ``bytes`` are moved by the kernels that the line has a part in; ``target`` is the selection that shows the line.
    """

    breaks: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    recompiles: int = 0
    kernels: int = 0
    bytes: int = 0
    target: str = ""

    def text(self, total: int) -> str:
        """Return the facts as one line, given the bytes that all kernels move."""
        parts = [f"graph break: {b}" for b in self.breaks] + [f"raises: {e}" for e in self.errors]
        parts += [pluralize(self.recompiles, "recompile")] if self.recompiles else []
        if self.kernels:
            moves = "moves" if self.kernels == 1 else "move"
            share = f" of {format_bytes(total)}" if total > self.bytes else ""
            moved = f", which {moves} {format_bytes(self.bytes)}{share} (estimate)" if self.bytes else ""
            parts.append(f"part of {pluralize(self.kernels, 'kernel')}{moved}")
        return "; ".join(parts)


Marks = dict[source_lines.FileLine, LineMark]
_found: WeakTable[Session, tuple[tuple[int, ...], Marks, int]] = WeakTable()


def line_marks(session: Session) -> tuple[Marks, int]:
    """Return the marks by file and line, and the bytes that all kernels move."""
    version = (len(session.calls), len(session.files), *map(id, session.compilations))
    cached = _found.get(session)
    if cached is None or cached[0] != version:
        cached = _found[session] = (version, *_line_marks(session))
    return cached[1], cached[2]


def margin(session: Session) -> list[dict[str, Any]]:
    """Return by file of the user the marks for an editor's margin.

    A mark has its line with the text, by which an editor knows that the line is still the compiled one.
    """
    marks, total = line_marks(session)
    files = [f for f in session.files if not is_installed_file(f.id) and not f.is_withheld]
    return [
        {"file": one_line(f.name, 60), "marks": rows} for f in files if (rows := _mark_rows(session, f, marks, total))
    ]


def _mark_rows(session: Session, file: SourceFile, marks: Marks, total: int) -> list[dict[str, Any]]:
    numbers = {
        file_line: number
        for c in session.compilations
        for file_line, number in source_lines.ordinals(session, c).numbers.items()
    }
    lines = file.text.splitlines()
    rows = []
    for (id, line), mark in sorted(marks.items()):
        index = line - file.first_line
        if id == file.id and 0 <= index < len(lines):
            rows.append(
                {
                    "line": line,
                    "code": lines[index].strip(),
                    "number": numbers.get((id, line), 0) if mark.kernels else 0,
                    "heat": mark.bytes / total if total else 0,
                    "sign": ("✗" if mark.breaks or mark.errors else "")
                    + (f"↻{mark.recompiles}" if mark.recompiles else ""),
                    "text": mark.text(total),
                    "target": mark.target,
                }
            )
    return rows


def _line_marks(session: Session) -> tuple[Marks, int]:
    marks: Marks = {}
    for group in groups(session):
        _mark_stops(group, marks)
        _mark_recompiles(session, group, marks)
    total = sum(_mark_kernels(session, c, marks) for c in session.compilations)
    return marks, total


def _mark_stops(group: RootGroup, marks: Marks) -> None:
    for stops, name in ((breaks_of(group.compilations), "breaks"), (errors_of(group.compilations), "errors")):
        for compilation, record in stops:
            if record.span:
                mark = marks.setdefault((record.span.file, record.span.line), LineMark())
                getattr(mark, name).append(one_line(record.title, 120).rstrip("."))
                mark.target = f"breaks|{compilation.id}"


def _mark_recompiles(session: Session, group: RootGroup, marks: Marks) -> None:
    """Count recompiles at the first line of the function, or at the graph break before it."""
    frames = {f.id: f for f in group.frames}
    for compilation in recompiles_of(session, group):
        frame = frames[compilation.frame]
        after = frame.resumes_after
        file_line = (after.file, after.line) if after else (frame.file, frame.first_line)
        mark = marks.setdefault(file_line, LineMark())
        mark.recompiles += 1
        mark.target = mark.target or f"recompiles|{compilation.id}"


def _mark_kernels(session: Session, compilation: CompilationRecord, marks: Marks) -> int:
    """Mark the lines that kernels come from; return the bytes that the kernels move."""
    kernels = {k.id: k for k in compilation.kernels or compilation.cpu_program.kernels}.values()
    nodes = nodes_by_id(compilation, (i for k in kernels for i in k.fused_nodes))
    files = {f.id for f in session.files}
    for kernel in kernels:
        spans = [source_lines.node_spans(nodes[i], files).span for i in kernel.fused_nodes if i in nodes]
        for file_line in {(s.file, s.line) for s in spans if s is not None}:
            mark = marks.setdefault(file_line, LineMark())
            mark.kernels += 1
            mark.bytes += kernel.bytes_moved or 0
            mark.target = mark.target or f"linked|{compilation.id}|line={file_line[1]}"
    return sum(k.bytes_moved or 0 for k in kernels)
