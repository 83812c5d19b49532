"""Search index: every named thing in a session and its location in the explorer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from engine.records.graph import GraphRecord, NodeRecord
from engine.records.session import CompilationRecord, Session
from notebook_ext.views import source_lines
from notebook_ext.views.entry_signature import entry_signature
from notebook_ext.views.format_text import one_line, sanitize, source_name, tensor_type

MAX_ROWS = 20_000
"""Maximum number of rows; the rest is left out."""

IndexRow = tuple[str, str, str, str]
"""Kind, name, short description, and location in the explorer."""


@dataclass
class IndexPart:
    """The rows of one compilation by kind; lines by file and number."""

    functions: Iterable[IndexRow]
    lines: dict[source_lines.FileLine, IndexRow]
    breaks: Iterable[IndexRow]
    guards: Iterable[IndexRow]
    kernels: Iterable[IndexRow]
    nodes: Iterable[IndexRow]

    def to_json(self) -> list[Any]:
        """Return the part as lists, for another process; all rows must be lists."""
        return [self.functions, list(self.lines.items()), self.breaks, self.guards, self.kernels, self.nodes]

    @classmethod
    def from_json(cls, columns: list[Any]) -> IndexPart:
        """Return the part from the lists of ``to_json``."""
        functions, lines, *others = columns
        return cls(functions, {(file, line): row for (file, line), row in lines}, *others)


def search_index(session: Session) -> dict[str, Any]:
    """Return functions, source lines, breaks, guards, kernels and nodes, in this order.

    ``limit`` is the number of rows if some are left out, else 0. Names after the limit are not parsed.
    """
    return join_index([index_part(session, c) for c in session.compilations])


def join_index(parts: Sequence[IndexPart]) -> dict[str, Any]:
    """Return the index of compilations from their parts, in the order of the compilations."""
    lines: dict[source_lines.FileLine, IndexRow] = {}
    for part in parts:
        for file_line, row in part.lines.items():
            lines.setdefault(file_line, row)
    kinds: tuple[Iterable[Iterable[IndexRow]], ...] = (
        (p.functions for p in parts),
        [lines.values()],
        (p.breaks for p in parts),
        (p.guards for p in parts),
        (p.kernels for p in parts),
        (p.nodes for p in parts),
    )
    rows = itertools.chain.from_iterable(itertools.chain.from_iterable(kinds))
    first = list(itertools.islice(rows, MAX_ROWS))
    is_cut = next(rows, None) is not None
    return {"rows": first, "limit": MAX_ROWS if is_cut else 0}


def index_part(session: Session, compilation: CompilationRecord) -> IndexPart:
    """Return the rows of one compilation; they are built as they are read."""
    entry = compilation.id.rpartition("/")[2]
    inputs = entry_signature(session, compilation)
    words = one_line(f"entry {entry}: {inputs}" if inputs else f"entry {entry}", 100)
    name = source_lines.frame_name(session, compilation.frame)
    return IndexPart(
        [("function", name, words, f"linked|{compilation.id}")],
        dict(_line_rows(session, compilation)),
        _break_rows(session, compilation),
        _guard_rows(compilation),
        _kernel_rows(compilation),
        _node_rows(compilation),
    )


def _line_rows(session: Session, compilation: CompilationRecord) -> Iterator[tuple[source_lines.FileLine, IndexRow]]:
    """Yield the source lines that were compiled."""
    for file, line in sorted(source_lines.ordinals(session, compilation).numbers):
        text = source_lines.line_text(session, file, line)
        if text.strip():
            where = f"line {line} of {source_lines.file_name(session, file)}"
            row = ("line", one_line(text, 100), one_line(where, 80), f"linked|{compilation.id}|line={line}")
            yield (file, line), row


def _kernel_rows(compilation: CompilationRecord) -> Iterator[IndexRow]:
    for kernel in {k.id: k for k in (*compilation.kernels, *compilation.cpu_kernels)}.values():
        names = ", ".join(n.rpartition(":")[2] for n in kernel.fused_nodes)
        target = f"kernels|{compilation.id}|{kernel.id}"
        yield "kernel", one_line(f"{kernel.id} {kernel.name}", 80), one_line(names, 100), target


def _break_rows(session: Session, compilation: CompilationRecord) -> Iterator[IndexRow]:
    for record in compilation.trace.breaks if compilation.trace else ():
        where = source_lines.line_name(session, record.span)
        yield (
            "break",
            one_line(record.title, 80),
            one_line(f"{where} {record.context}", 100),
            f"breaks|{compilation.id}",
        )


def _guard_rows(compilation: CompilationRecord) -> Iterator[IndexRow]:
    for number, guard in enumerate(compilation.guards.guards if compilation.guards else (), 1):
        name = one_line(f"{source_name(guard.source)} {guard.kind}", 80)
        yield "guard", name, one_line(guard.expected, 100), f"guards|{compilation.id}|guard={number}"


def _node_rows(compilation: CompilationRecord) -> Iterator[IndexRow]:
    for number, graph in enumerate(compilation.graphs):
        stage = sanitize(graph.stage) if number else ""
        for node in graph.nodes:
            if node.op != "output":
                yield _node_row(compilation, stage, graph, node)


def _node_row(compilation: CompilationRecord, stage: str, graph: GraphRecord, node: NodeRecord) -> IndexRow:
    kind = tensor_type(node.dtype, node.shape) if node.dtype else ""
    name = one_line(node.name, 60)
    detail = one_line(f"{graph.stage}: {node.text}  {kind}", 140)
    return "node", name, detail, f"graph|{compilation.id}|{stage}|node={name}"
