"""Recompiles view: cache entries by calls.

For each call it shows the checked entries in order, their guard failures, and the cost of the
recompile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.options import config
from engine.records.counts import compile_seconds, groups, nearest_guard_failure
from engine.records.findings import useful_fixes
from engine.records.guards import GuardFailure
from engine.records.runtime import CallRecord
from engine.records.session import CompilationRecord, FrameRecord, Session
from notebook_ext.views import source_lines
from notebook_ext.views.entry_signature import entry_signature
from notebook_ext.views.format_text import one_line, sanitize, shorten_floats
from notebook_ext.views.guards import fix_rows
from notebook_ext.views.summary import guard_failure_text

MAX_COLUMNS = 40
"""Maximum number of columns for one frame.

Runs of equal hits share a column first; then the oldest columns are left out and counted.
"""


def recompiles(session: Session) -> dict[str, Any]:
    """Return one lane for each compiled or skipped code object, in Home's order."""
    return {
        "is_observed": session.compiler == "torch",
        "lanes": [
            _lane_data(session, f)
            for group in groups(session)
            for f in group.frames
            if any(c.frame == f.id for c in group.compilations)
        ],
        "dropped": session.calls_dropped,
    }


def _lane_data(session: Session, frame: FrameRecord) -> dict[str, Any]:
    entries = [c for c in session.compilations if c.frame == frame.id]
    calls = [c for c in session.calls if c.frame == frame.id]
    columns = _call_columns(session, entries, calls)
    varying = _varying_inputs(calls)
    for column in columns:
        inputs = calls[column["first"] - 1].inputs or {}
        column["varying"] = [f"{sanitize(n)} {shorten_floats(sanitize(inputs[n]))}" for n in varying if n in inputs]
    _add_hidden_changes(columns, calls)
    return {
        "frame": frame.id,
        "name": source_lines.frame_name(session, frame.id, 80),
        "is_root": not frame.parent,
        "line": "" if frame.resumes_after else source_lines.frame_line(session, frame),
        "limit": config.recompile_limit,
        "entries": [_entry_data(session, e, columns) for e in entries],
        "columns": columns[-MAX_COLUMNS:],
        "cut": max(0, len(columns) - MAX_COLUMNS),
        "calls": len(calls),
        # A trace of torch.compile holds misses only; calls of a %%compile cell are counted here.
        "hits": sum(c.outcome == "hit" for c in calls) or (None if session.compiler == "torch" else 0),
        "misses": sum(c.outcome == "compiled" for c in calls),
        "python": sum(c.outcome == "python" for c in calls),
        "guard_seconds": sum(c.guard_seconds for c in calls),
        "seconds": sum(compile_seconds(e) for e in entries),
    }


def _entry_data(session: Session, entry: CompilationRecord, columns: list[dict[str, Any]]) -> dict[str, Any]:
    compiling_call = next((c["first"] for c in columns if c["outcome"] == "compiled" and c["entry"] == entry.id), 0)
    return {
        "id": entry.id,
        "name": f"e{entry.id.rpartition('/')[2]}",
        "inputs": entry_signature(session, entry),
        "cause": one_line(entry.cause, 300),
        "from": compiling_call,
        "seconds": compile_seconds(entry),
    }


def _call_columns(session: Session, entries: list[CompilationRecord], calls: list[CallRecord]) -> list[dict[str, Any]]:
    columns: list[dict[str, Any]] = []
    for number, call in enumerate(calls, 1):
        cells = _entry_states(call, entries)
        compiled = [e for e in entries if e.id == call.entry and call.outcome == "compiled"]
        last = columns[-1] if columns else None
        inputs = ", ".join(f"{sanitize(k)} {sanitize(v)}" for k, v in (call.inputs or {}).items())
        if last and call.outcome == "hit" == last["outcome"] and cells == last["cells"] and inputs == last["inputs"]:
            last["last"] = number
            continue
        columns.append(
            {
                "first": number,
                "last": number,
                "outcome": call.outcome,
                "entry": call.entry,
                "inputs": inputs,
                "caller": source_lines.line_name(session, call.caller),
                "cells": cells,
                "order": list(cells),
                "rejections": [_rejection_data(session, r, compiled) for r in _nearest_first(call.guard_failures)],
            }
        )
    return columns


def _nearest_first(failures: Sequence[GuardFailure]) -> list[GuardFailure]:
    """Return guard failures in look-up order, but first the one that Home names as the cause."""
    nearest = nearest_guard_failure(failures) if failures else None
    return sorted(failures, key=lambda f: f is not nearest)


def _add_hidden_changes(columns: list[dict[str, Any]], calls: list[CallRecord]) -> None:
    """Add the changed property to misses whose inputs read like those of an earlier miss."""
    seen: set[str] = set()
    for column in columns:
        call = calls[column["first"] - 1]
        if column["outcome"] != "compiled":
            continue
        if column["inputs"] in seen and call.guard_failures:
            column["varying"].append(guard_failure_text(nearest_guard_failure(call.guard_failures)))
        seen.add(column["inputs"])


def _varying_inputs(calls: list[CallRecord]) -> list[str]:
    """Return the names of the inputs that differ between calls."""
    seen: dict[str, set[str]] = {}
    for call in calls:
        for name, text in (call.inputs or {}).items():
            seen.setdefault(name, set()).add(text)
    return [name for name, texts in seen.items() if len(texts) > 1]


def _entry_states(call: CallRecord, entries: list[CompilationRecord]) -> dict[str, str]:
    """Return the state of each checked entry: "rejected", "hit", "compiled" or "python"."""
    ids = {e.id for e in entries} | {e.id.rpartition("/")[2] for e in entries}
    cells = {a: "rejected" for a in (*call.checked_entries, *(r.entry for r in call.guard_failures)) if a in ids}
    if call.entry in ids:  # The entry of a frame that runs as Python says so.
        cells[call.entry] = call.outcome
    return cells


def _rejection_data(session: Session, rejection: GuardFailure, compiled: list[CompilationRecord]) -> dict[str, Any]:
    fixes = useful_fixes(session, rejection, compiled, lambda s: source_lines.line_name(session, s))
    return {
        "entry": rejection.entry,
        "guard": sanitize(rejection.guard),
        "what": f"{one_line(rejection.source, 60)} {one_line(rejection.kind, 30)}",
        "expected": one_line(rejection.expected, 80),
        "actual": one_line(rejection.actual, 80),
        "short": guard_failure_text(rejection),
        "sentence": one_line(rejection.sentence, 300),
        "place": source_lines.failure_place(session, rejection),
        "source": sanitize(source_lines.source_line(session, rejection.span)),
        "fixes": fix_rows(fixes),
        "lesson": sanitize(rejection.hint),
    }
