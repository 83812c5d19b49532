"""Search index: every named thing in a session and its location in the explorer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
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


def search_index(session: Session) -> dict[str, Any]:
    """Return functions, source lines, breaks, guards, kernels and nodes, in this order.

    ``limit`` is the number of rows if some are left out, else 0. Names after the limit are not parsed.
    """
    rows = itertools.chain(_rows(session), _nodes(session))
    first = list(itertools.islice(rows, MAX_ROWS))
    is_cut = next(rows, None) is not None
    return {"rows": first, "limit": MAX_ROWS if is_cut else 0}


def _rows(session: Session) -> Iterator[IndexRow]:
    """Yield the rows of all but nodes."""
    compilations = session.compilations
    for compilation in compilations:
        entry = compilation.id.rpartition("/")[2]
        inputs = entry_signature(session, compilation)
        words = one_line(f"entry {entry}: {inputs}" if inputs else f"entry {entry}", 100)
        yield "function", source_lines.frame_name(session, compilation.frame), words, f"linked|{compilation.id}"
    yield from _lines(session)
    for compilation in compilations:
        yield from _breaks(session, compilation)
    for compilation in compilations:
        yield from _guards(session, compilation)
    for compilation in compilations:
        for kernel in {k.id: k for k in (*compilation.kernels, *compilation.cpu_kernels)}.values():
            names = ", ".join(n.rpartition(":")[2] for n in kernel.fused_nodes)
            target = f"kernels|{compilation.id}|{kernel.id}"
            yield "kernel", one_line(f"{kernel.id} {kernel.name}", 80), one_line(names, 100), target


def _lines(session: Session) -> Iterator[IndexRow]:
    """Yield the source lines that were compiled, each in the first compilation that has it."""
    seen: set[source_lines.FileLine] = set()
    for compilation in session.compilations:
        for file, line in sorted(set(source_lines.ordinals(session, compilation).numbers) - seen):
            seen.add((file, line))
            text = source_lines.line_text(session, file, line)
            if text.strip():
                where = f"line {line} of {source_lines.file_name(session, file)}"
                yield "line", one_line(text, 100), one_line(where, 80), f"linked|{compilation.id}|line={line}"


def _breaks(session: Session, compilation: CompilationRecord) -> Iterator[IndexRow]:
    for record in compilation.trace.breaks if compilation.trace else ():
        where = source_lines.line_name(session, record.span)
        yield (
            "break",
            one_line(record.title, 80),
            one_line(f"{where} {record.context}", 100),
            f"breaks|{compilation.id}",
        )


def _guards(session: Session, compilation: CompilationRecord) -> Iterator[IndexRow]:
    for number, guard in enumerate(compilation.guards.guards if compilation.guards else (), 1):
        name = one_line(f"{source_name(guard.source)} {guard.kind}", 80)
        yield "guard", name, one_line(guard.expected, 100), f"guards|{compilation.id}|guard={number}"


def _nodes(session: Session) -> Iterator[IndexRow]:
    for compilation in session.compilations:
        for number, graph in enumerate(compilation.graphs):
            stage = sanitize(graph.stage) if number else ""
            for node in graph.nodes:
                if node.op != "output":
                    yield _node(compilation, stage, graph, node)


def _node(compilation: CompilationRecord, stage: str, graph: GraphRecord, node: NodeRecord) -> IndexRow:
    kind = tensor_type(node.dtype, node.shape) if node.dtype else ""
    name = one_line(node.name, 60)
    detail = one_line(f"{graph.stage}: {node.text}  {kind}", 140)
    return "node", name, detail, f"graph|{compilation.id}|{stage}|node={name}"
