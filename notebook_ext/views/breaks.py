"""Where graphs broke, what was not compiled and what failed, each with its reason and what to do."""

from __future__ import annotations

from typing import Any

from engine.errors import pointed
from engine.records.bytecode import Span
from engine.records.runtime import Failure
from engine.records.session import CompilationRecord, Session
from engine.records.trace import AttemptRecord
from notebook_ext.views import places
from notebook_ext.views.summary import breaks_of, groups
from notebook_ext.views.text import clean, one_line, plural, without_paths


def breaks(session: Session) -> dict[str, Any]:
    """Breaks by root, each with what the tracer had given up before it; then attempts that led to no break, skipped names, failures of ours and notes."""
    told: set[str] = set()
    return {
        "breaks": [
            _break(session, group.root.name, compilation, record, told)
            for group in groups(session)
            for compilation, record in breaks_of(group.compilations)
        ],
        "attempts": [text for c in session.compilations if c.id not in told for text in _attempts(session, c)],
        "skipped": [
            {"name": one_line(s.name, 80), "reason": clean(s.reason).rstrip("."), "remedy": clean(s.remedy)}
            for s in session.skipped
        ],
        "failures": [_failure("", f) for f in session.failures]
        + [_failure(c.id, f) for c in session.compilations for f in c.failures],
        "notes": [clean(n) for n in session.notes],
    }


def _break(session: Session, root: str, compilation: CompilationRecord, record: Any, told: set[str]) -> dict[str, Any]:
    attempts = [] if compilation.id in told else _attempts(session, compilation)
    told.add(compilation.id)
    return {
        "root": one_line(root, 80),
        "compilation": compilation.id,
        "kind": clean(record.kind),
        "title": clean(record.title).rstrip("."),
        "what": clean(record.what),
        "why": clean(record.why),
        "remedies": [clean(r) for r in record.remedies],
        "line": record.span.line if record.span else 0,
        "place": places.place_name(session, record.span),
        "pointed": pointed_at(session, record.span),
        "stack": _callers(session, record.stack[:-1]),
        "skipped": record.skipped,
        "times": record.times,
        "before": clean(record.before),
        "after": clean(record.after),
        "attempts": attempts,
    }


def _attempts(session: Session, compilation: CompilationRecord) -> list[str]:
    """The runs of the tracer that this compilation gave up, a sentence each."""
    return [_attempt(session, a) for a in (compilation.trace.attempts if compilation.trace else ())]


def _attempt(session: Session, record: AttemptRecord) -> str:
    """How far a run came, what it met, and what of it was undone."""
    place = places.place_name(session, record.span)
    came = f"after {plural(record.operations, 'operation')} and {plural(record.guards, 'guard')}"
    parts = [f"{f'At {place}, ' if place else ''}{came}: {clean(record.what).rstrip('.')}"]
    if record.effects:
        parts.append(f"undone: {', '.join(one_line(e, 80) for e in record.effects)}")
    if record.switched:
        parts.append(f"put back: {', '.join(clean(s) for s in record.switched)}")
    return "; ".join(parts)


def _callers(session: Session, stack: tuple[Span, ...]) -> list[str]:
    """The lines that led there, outermost first; those of files that the session does not hold, as torch's own, are left out."""
    held = {f.id for f in session.files}
    return [
        f"{places.place_name(session, s)}: {clean(places.source_line(session, s))}" for s in stack if s.file in held
    ]


def pointed_at(session: Session, span: Span | None) -> str:
    """The source line with carets under the span, without a file name; empty where the source is unknown."""
    if span is None:
        return ""
    file = next((f for f in session.files if f.id == span.file), None)
    if file is None:
        return ""
    shifted = Span(
        "",
        span.line - file.first_line + 1,
        -1,
        span.column,
        span.end_column if span.end_line in (-1, span.line) else -1,
    )
    lines = pointed(file.text, shifted).split("\n")[1:]
    return clean("\n".join(line.removeprefix("    ") for line in lines))


def _failure(compilation: str, failure: Failure) -> dict[str, Any]:
    return {
        "compilation": compilation,
        "stage": one_line(failure.stage, 60),
        "sentence": clean(failure.sentence),
        "fallback": clean(failure.fallback).rstrip("."),
        "detail": without_paths(clean(failure.detail)),
    }
