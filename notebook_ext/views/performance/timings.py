"""Compile-time timeline: the stages of each compilation as nested bars."""

from __future__ import annotations

from typing import Any

from engine.records.format_amounts import format_seconds
from engine.records.runtime import Timing, call_numbers
from engine.records.session import CompilationRecord, Session
from notebook_ext.views import source_lines
from notebook_ext.views.format_text import one_line


def timings(session: Session) -> dict[str, Any]:
    """Return one row of bars for each compilation; all rows share one clock.

    ``depth`` is the nesting depth of a bar, ``share`` its part of the compilation's time.
    """
    frames = {f.id: source_lines.frame_name(session, f.id) for f in session.frames}
    numbers = call_numbers(session.calls)
    roots = {f.id for f in session.frames if not f.parent}
    rows = [_timing_row(c, frames.get(c.frame, "")) for c in session.compilations if c.timings]
    return {
        "rows": rows,
        "end": max((b["start"] + b["seconds"] for r in rows for b in r["bars"]), default=0.0),
        "totals": _total_rows(session),
        "root_calls": sum(c.frame in roots for c in session.calls if c.start),
        "calls": [
            [
                round(c.start, 6),
                c.outcome,
                f"{one_line(frames.get(c.frame, ''), 40)} {c.entry.rpartition('/')[2]}".strip(),
                numbers[c.index],
            ]
            for c in session.calls
            if c.start
        ],
    }


def _timing_row(compilation: CompilationRecord, name: str) -> dict[str, Any]:
    top = [t for t in compilation.timings if not t.parent]
    whole = sum(t.seconds for t in top)
    compiled = [t for k in compilation.kernels for t in k.targets]
    return {
        "compilation": compilation.id,
        "name": one_line(name, 60),
        "cause": one_line(compilation.cause, 200),
        "seconds": whole,
        "text": format_seconds(whole),
        "after": sum(t.seconds for t in compiled),
        "bars": [
            _bar_data(t, compilation.timings, whole)
            for t in sorted(compilation.timings, key=lambda t: (t.start, -t.seconds))
        ],
    }


def _bar_data(timing: Timing, all_of_it: tuple[Timing, ...], whole: float) -> dict[str, Any]:
    return {
        "stage": one_line(timing.stage, 60),
        "start": timing.start,
        "seconds": timing.seconds,
        "text": format_seconds(timing.seconds),
        "share": round(timing.seconds / whole, 4) if whole else 0.0,
        "depth": nesting_depth(timing, all_of_it),
    }


def nesting_depth(timing: Timing, all_of_it: tuple[Timing, ...]) -> int:
    """Return the number of stages that enclose this one."""
    parents = {t.stage: t.parent for t in all_of_it}
    depth, parent = 0, timing.parent
    while parent and depth < 8:
        depth, parent = depth + 1, parents.get(parent, "")
    return depth


def exclusive_seconds(compilation: CompilationRecord) -> dict[str, float]:
    """Return seconds by stage without nested stages, so that they add up to the total."""
    seconds: dict[str, float] = {}
    for timing in compilation.timings:
        seconds[timing.stage] = seconds.get(timing.stage, 0.0) + timing.seconds
        if timing.parent:
            seconds[timing.parent] = seconds.get(timing.parent, 0.0) - timing.seconds
    return {stage: max(0.0, value) for stage, value in seconds.items()}


def _total_rows(session: Session) -> list[dict[str, Any]]:
    totals: dict[str, float] = {}
    for compilation in session.compilations:
        for stage, value in exclusive_seconds(compilation).items():
            totals[stage] = totals.get(stage, 0.0) + value
    whole = sum(totals.values())
    return [
        {
            "stage": one_line(stage, 60),
            "seconds": value,
            "text": format_seconds(value),
            "share": round(value / whole, 4) if whole else 0.0,
        }
        for stage, value in sorted(totals.items(), key=lambda kv: -kv[1])
    ]
