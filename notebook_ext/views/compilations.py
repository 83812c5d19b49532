"""Table of all compilations, and for each its facts, cache results and text artifacts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from engine.records.counts import (
    aten_calls_of,
    compilation_counts,
    compile_seconds,
    has_graph,
    is_user_error,
    unique_kernels,
)
from engine.records.format_amounts import format_seconds
from engine.records.guards import ObservedSymbolRecord
from engine.records.lowering import LoweringRecord
from engine.records.session import CompilationRecord, FrameRecord, Session
from notebook_ext.views import source_lines
from notebook_ext.views.entry_signature import entry_signature
from notebook_ext.views.format_text import one_line, sanitize, source_name
from notebook_ext.views.linked.row_links import CPU, for_target

MAX_LINES = 60_000
"""Maximum number of lines of one text; the rest is counted."""


def compilations(session: Session) -> dict[str, Any]:
    """Return one row for each compilation, in compile order, and the texts of the session."""
    frames = {f.id: f for f in session.frames}
    return {
        "rows": [_compilation_row(session, c, frames.get(c.frame)) for c in session.compilations],
        "texts": [one_line(t.name, 80) for t in session.artifacts],
        "has_restarts": any(c.restart_reasons for c in session.compilations),
        "has_caches": any(c.disk_caches for c in session.compilations),
        "kernel_title": "CPU kernels" if ran_on_cpu(session) else "Kernels",
    }


def _compilation_row(session: Session, compilation: CompilationRecord, frame: FrameRecord | None) -> dict[str, Any]:
    totals = compilation_counts(compilation)
    kernels, calls = program_counts(session, (compilation,))
    whole = compile_seconds(compilation)
    return {
        "id": compilation.id,
        "name": source_lines.frame_name(session, compilation.frame),
        "role": frame.role if frame and frame.parent else "",
        "place": one_line(f"{source_lines.file_name(session, frame.file)}:{frame.first_line}", 80)
        if frame and frame.file
        else "",
        "called": source_lines.call_place(session, compilation),
        "outcome": _outcome_text(compilation),
        "cause": one_line(compilation.cause, 200),
        "inputs": one_line(entry_signature(session, compilation), 100),
        "graphs": totals.graphs,
        "breaks": ", ".join(_break_places(session, compilation)),
        "restarts": len(compilation.restart_reasons),
        "kernels": kernels,
        "externs": calls,
        "caches": " ".join(f"{c.outcome}" for c in compilation.disk_caches),
        "failures": len(compilation.failures),
        "symbols": len(compilation.observed_symbols),
        "seconds": whole,
        "time": format_seconds(whole) if whole else "",
    }


def _break_places(session: Session, compilation: CompilationRecord) -> Iterable[str]:
    """Return the lines of the graph breaks, without their file."""
    stops = (b for b in (compilation.trace.breaks if compilation.trace else ()) if not is_user_error(b))
    return dict.fromkeys(source_lines.line_name(session, b.span).partition(" of ")[0] or "unknown line" for b in stops)


def _outcome_text(compilation: CompilationRecord) -> str:
    stops = compilation.trace.breaks if compilation.trace else ()
    if any(is_user_error(b) for b in stops):
        return "raises"
    if any(b.skips_frame for b in stops):
        return "skipped"
    if compilation.failures:
        return "failed"
    if not has_graph(compilation):
        return "no graph"
    return "graph break" if stops else "one graph"


def compilation_facts(session: Session, compilation: str) -> dict[str, Any]:
    """Return the facts of one compilation and the names of its texts.

    If the id is empty, return the texts of the session.

    Raises:
        KeyError: there is no such compilation.
    """
    if not compilation:
        return {"compilation": "", "texts": [one_line(t.name, 80) for t in session.artifacts]}
    record = session.compilation(compilation)
    aot = record.aot
    return {
        "compilation": record.id,
        "cause": sanitize(record.cause),
        "inputs": [[one_line(source_name(k), 80), one_line(v, 80)] for k, v in (record.inputs or {}).items()],
        "restarts": [sanitize(r.partition("\n")[0]) for r in record.restart_reasons],
        "caches": [
            {
                "cache": one_line(c.cache),
                "outcome": one_line(c.outcome),
                "key": one_line(c.key, 80),
                "note": sanitize(c.note),
            }
            for c in record.disk_caches
        ],
        "symbols": [_symbol_row(session, s) for s in record.observed_symbols],
        "aot": [[one_line(v.name), "; ".join(map(sanitize, v.facts))] for v in aot.values if v.facts] if aot else [],
        "failures": [{"sentence": sanitize(f.sentence), "detail": sanitize(f.detail)} for f in record.failures],
        "times": [[one_line(t.stage), format_seconds(t.seconds)] for t in record.timings],
        "texts": [name() for name, _ in _text_readers(record)],
    }


def _symbol_row(session: Session, symbol: ObservedSymbolRecord) -> dict[str, Any]:
    return {
        "name": one_line(symbol.name, 40),
        "source": one_line(source_name(symbol.source), 80) or "data-dependent",
        "value": one_line(symbol.hint, 40),
        "range": one_line(symbol.range, 60),
        "place": source_lines.line_name(session, symbol.span),
        "events": [
            {
                "kind": one_line(e.kind, 20),
                "text": one_line(e.text, 200),
                "place": source_lines.line_name(session, e.span),
                "source": sanitize(source_lines.source_line(session, e.span)),
            }
            for e in symbol.events
        ],
    }


def artifact_text(session: Session, compilation: str, number: str) -> dict[str, Any]:
    """Return one text by its number in the ``texts`` of ``compilation_facts``.

    Raises:
        KeyError: there is no such text.
    """
    texts = _text_readers(session.compilation(compilation)) if compilation else _artifact_texts(session)
    if not number.isdigit() or int(number) >= len(texts):
        raise KeyError(number)
    name, read = texts[int(number)]
    text = sanitize(read())
    cut = max(0, text.count("\n") + 1 - MAX_LINES)
    return {"name": name(), "text": "\n".join(text.split("\n", MAX_LINES)[:-1]) if cut else text, "cut": cut}


TextReader = tuple[Callable[[], str], Callable[[], str]]
"""Functions that return the name and the text of a part of a log, read when it is opened."""


def _reader(record: Any, name_of: Callable[[Any], str]) -> TextReader:
    return lambda: name_of(record), lambda: record.text


def _artifact_texts(session: Session) -> list[TextReader]:
    return [_reader(artifact, lambda a: one_line(a.name, 80)) for artifact in session.artifacts]


def _text_readers(record: CompilationRecord) -> list[TextReader]:
    """Return functions for the name and the text of all texts of a compilation, graphs first."""
    readers: list[TextReader] = []
    if record.compiler == "torch":
        readers += [_reader(graph, lambda g: one_line(g.title, 80)) for graph in record.graphs]
    guards, lowering = record.guards, record.lowering
    if guards is not None and (record.compiler == "torch" or guards.check_text):
        readers.append((lambda: "Guard check", lambda: guards.check_text))
    if lowering is not None:
        readers.append((lambda: "Wrapper program", lambda: lowering.wrapper_text))
    kernels = {k.id: k for k in record.kernels}.values()
    readers += [_reader(kernel, lambda k: f"{one_line(k.id, 20)} {one_line(k.name, 70)}") for kernel in kernels]
    return readers + [_reader(artifact, lambda a: one_line(a.name, 80)) for artifact in record.artifacts]


def artifact_keys(session: Session) -> list[str]:
    """Return the keys of all texts, for a page without a kernel."""
    own = [f"file||{i}" for i in range(len(session.artifacts))]
    return own + [f"file|{c.id}|{i}" for c in session.compilations for i in range(len(_text_readers(c)))]


def ran_on_cpu(session: Session) -> bool:
    """Return True if kernels of this CPU computed results."""
    return any(c.cpu_kernels for c in session.compilations)


def program_counts(session: Session, compilations: Iterable[CompilationRecord]) -> tuple[int, int]:
    """Count the kernels and ATen calls of the programs that ran, on this CPU if one did."""
    counted = [_cpu_counts(c) if ran_on_cpu(session) else _count_kernels_and_calls(c) for c in compilations]
    return sum(kernels for kernels, _ in counted), sum(calls for _, calls in counted)


def _count_kernels_and_calls(compilation: CompilationRecord) -> tuple[int, int]:
    return len(unique_kernels(compilation)), len(aten_calls_of(compilation))


def _cpu_counts(compilation: CompilationRecord) -> tuple[int, int]:
    ran = compilation.cpu_program
    kernels, calls = _count_kernels_and_calls(for_target(compilation, CPU))
    if not (ran.kernels or ran.externs) or ran.reason:
        calls += _aten_count(compilation, compilation.lowering, is_backward=False)
    if not ran.has_backward:
        calls += _aten_count(compilation, compilation.backward_lowering, is_backward=True)
    return kernels, calls


def _aten_count(compilation: CompilationRecord, lowering: LoweringRecord | None, *, is_backward: bool) -> int:
    """Count the operators of a graph that ATen ran, also those that kernels for a GPU fuse."""
    kernels = (k for k in compilation.kernels if k.id.startswith("b") == is_backward)
    fused = {node for k in kernels for node in (*k.fused_nodes, *(n for x in k.launches for n in x.nodes))}
    return len(aten_calls_of(replace(compilation, lowering=lowering, backward_lowering=None))) + len(fused)
