"""View of graph breaks, exceptions, skipped names and internal errors, with reasons."""

from __future__ import annotations

from typing import Any

from engine.errors import source_with_caret
from engine.records.bytecode import Span
from engine.records.counts import breaks_and_errors_of, groups, is_user_error
from engine.records.runtime import StageFailure
from engine.records.session import CompilationRecord, Session
from engine.records.trace import DiscardedAttempt
from notebook_ext.views import source_lines
from notebook_ext.views.format_text import one_line, pluralize, sanitize, shorten_paths


def breaks(session: Session) -> dict[str, Any]:
    """Return breaks by root, each with the discarded attempts of the tracer before it.

    Attempts that led to no break, skipped names, internal errors and notes follow.
    """
    with_rows: set[str] = set()
    return {
        "breaks": [
            _break_row(session, group.root.name, compilation, record, with_rows)
            for group in groups(session)
            for compilation, record in breaks_and_errors_of(group.compilations)
        ],
        "attempts": [
            text for c in session.compilations if c.id not in with_rows for text in _attempt_texts(session, c)
        ],
        "skipped": [
            {"name": one_line(s.name, 80), "reason": sanitize(s.reason).rstrip("."), "hint": sanitize(s.hint)}
            for s in session.skipped
        ],
        "failures": [_failure_row("", f) for f in session.failures]
        + [_failure_row(c.id, f) for c in session.compilations for f in c.failures],
        "notes": [sanitize(n) for n in session.notes],
    }


def _break_row(
    session: Session, root: str, compilation: CompilationRecord, record: Any, with_rows: set[str]
) -> dict[str, Any]:
    attempts = [] if compilation.id in with_rows else _attempt_texts(session, compilation)
    is_error = is_user_error(record)
    with_rows.add(compilation.id)
    return {
        "root": source_lines.function_of(session, record.span) or one_line(root, 80),
        "compilation": compilation.id,
        "kind": sanitize(record.kind),
        "is_error": is_error,
        "title": sanitize(record.title).rstrip("."),
        "what": sanitize(record.context),
        "why": sanitize(record.explanation),
        "hints": [sanitize(r) for r in record.hints],
        "line": record.span.line if record.span else 0,
        "place": source_lines.line_name(session, record.span),
        "pointed": caret_lines(session, record.span),
        "stack": _caller_lines(session, record.stack[:-1]),
        "skipped": record.skips_frame,
        "times": record.count,
        "before": "" if is_error else sanitize(record.example_before),
        "after": "" if is_error else sanitize(record.example_after),
        "attempts": attempts,
    }


def _attempt_texts(session: Session, compilation: CompilationRecord) -> list[str]:
    """Return one sentence for each attempt of the tracer that this compilation discarded."""
    return [_attempt_text(session, a) for a in (compilation.trace.discarded_attempts if compilation.trace else ())]


def _attempt_text(session: Session, record: DiscardedAttempt) -> str:
    """Return how far an attempt got, why it was discarded, and what was undone."""
    line = source_lines.line_name(session, record.span)
    came = f"after {pluralize(record.operations, 'operation')} and {pluralize(record.guards, 'guard')}"
    parts = [f"{f'At {line}, ' if line else ''}{came}: {sanitize(record.context).rstrip('.')}"]
    if record.side_effects:
        parts.append(f"undone: {', '.join(one_line(e, 80) for e in record.side_effects)}")
    if record.restored_state:
        parts.append(f"restored: {', '.join(sanitize(s) for s in record.restored_state)}")
    return "; ".join(parts)


def _caller_lines(session: Session, stack: tuple[Span, ...]) -> list[str]:
    """Return the source lines of the callers, outermost first.

    Lines of files that are not in the session, such as torch's own, are left out.
    """
    held = {f.id for f in session.files}
    return [
        f"{source_lines.line_name(session, s)}: {sanitize(source_lines.source_line(session, s))}"
        for s in stack
        if s.file in held
    ]


def caret_lines(session: Session, span: Span | None) -> str:
    """Return the source line with carets under the span; empty if the source is unknown."""
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
    lines = source_with_caret(file.text, shifted).split("\n")[1:]
    return sanitize("\n".join(line.removeprefix("    ") for line in lines))


def _failure_row(compilation: str, failure: StageFailure) -> dict[str, Any]:
    return {
        "compilation": compilation,
        "stage": one_line(failure.stage, 60),
        "sentence": sanitize(failure.sentence),
        "fallback": sanitize(failure.fallback).rstrip("."),
        "detail": shorten_paths(sanitize(failure.detail)),
    }
