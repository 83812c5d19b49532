"""Write the timeline of a session for Perfetto, Chrome or speedscope."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.group_pairs import group_pairs
from engine.records.guards import entry_name
from engine.records.runtime import Timing
from engine.replace_file import replace_file

if TYPE_CHECKING:
    from engine.records.session import CompilationRecord, Session

SPEEDSCOPE_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
COMPILATIONS, KERNELS = 1, 2
"""Process numbers of the two groups of rows in a Perfetto trace."""


def save_timeline(session: Session, path: str | pathlib.Path) -> pathlib.Path:
    """Write compilations, calls and measured kernels to a file, and return its path.

    A name that ends with ``.speedscope.json`` is for speedscope; others are for Perfetto and Chrome.
    """
    path = pathlib.Path(path)
    is_speedscope = path.name.endswith(".speedscope.json")
    timeline = speedscope_profile(session) if is_speedscope else perfetto_trace(session)
    with replace_file(path) as stream:
        stream.write(json.dumps(timeline).encode())
    return path


def perfetto_trace(session: Session) -> dict[str, Any]:
    """Return the timeline in the JSON format of Chrome's tracing, times in microseconds.

    Each function has a row with its compilations and calls. Measured kernels have rows of their own: each was
    measured alone, so their places on the clock say nothing.
    """
    events = [_process(COMPILATIONS, "compilations and calls"), *_rows(session)]
    for compilation in session.compilations:
        events += _compilation_events(session, compilation)
    events += _call_events(session)
    if kernels := list(_kernel_events(session)):
        events += [_process(KERNELS, "measured kernels, in launch order"), *kernels]
    return {"displayTimeUnit": "ms", "traceEvents": events, "otherData": dict(session.versions)}


def speedscope_profile(session: Session) -> dict[str, Any]:
    """Return one profile for each compilation: a flame chart of its stages."""
    numbers: dict[str, int] = {}
    profiles = []
    for compilation in session.compilations:
        events = list(_edges(stage_spans(compilation.timings), numbers))
        if events:
            name = f"{_frame_name(session, compilation.frame)} {entry_name(compilation.id)}"
            ends = {"startValue": events[0]["at"], "endValue": events[-1]["at"]}
            profiles.append({"type": "evented", "name": name, "unit": "seconds", **ends, "events": events})
    return {
        "$schema": SPEEDSCOPE_SCHEMA,
        "name": "compile-explorer",
        "exporter": "compile-explorer",
        "shared": {"frames": [{"name": name} for name in numbers]},
        "profiles": profiles,
    }


def _edges(spans: list[StageSpan], numbers: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Yield an event where a stage opens or closes, in the order of time; number new stages."""
    opened: list[StageSpan] = []
    for span in (*spans, None):
        while opened and (span is None or opened[-1].depth >= span.depth):
            closed = opened.pop()
            yield {"type": "C", "frame": numbers[closed.stage], "at": closed.end}
        if span is not None:
            opened.append(span)
            yield {"type": "O", "frame": numbers.setdefault(span.stage, len(numbers)), "at": span.start}


def _frame_name(session: Session, id: str) -> str:
    return next((f.name for f in session.frames if f.id == id), id)


def _rows(session: Session) -> Iterator[dict[str, Any]]:
    """Yield the names of the rows, one for each function."""
    for number, frame in enumerate(session.frames):
        yield {"ph": "M", "name": "thread_name", "pid": COMPILATIONS, "tid": number, "args": {"name": frame.name}}


def _row_of(session: Session, frame: str) -> int:
    return next((number for number, f in enumerate(session.frames) if f.id == frame), len(session.frames))


def _compilation_events(session: Session, compilation: CompilationRecord) -> Iterator[dict[str, Any]]:
    row = _row_of(session, compilation.frame)
    for span in stage_spans(compilation.timings):
        facts = {"entry": compilation.id} | ({} if span.depth else {"compiled because": compilation.cause})
        yield _span_event(span.stage, COMPILATIONS, row, span.start, span.end - span.start, facts)


def _call_events(session: Session) -> Iterator[dict[str, Any]]:
    for call in session.calls:
        if call.start:
            row = _row_of(session, call.frame)
            facts = {"call": call.index + 1, "entry": call.entry, **(call.inputs or {})}
            event = {"ph": "i", "s": "t", "name": call.outcome, "pid": COMPILATIONS, "tid": row}
            yield {**event, "ts": call.start * 1e6, "args": facts}


def _kernel_events(session: Session) -> Iterator[dict[str, Any]]:
    """Yield the launches of measured kernels, a row for each function."""
    ends: dict[int, float] = {}
    for compilation in session.compilations:
        row = _row_of(session, compilation.frame)
        for kernel in {k.id: k for k in (*compilation.kernels, *compilation.cpu_kernels)}.values():
            if kernel.measured is None:
                continue
            seconds, start = kernel.measured.seconds * max(1, len(kernel.launches)), ends.get(row, 0.0)
            facts = {"kernel": kernel.id, "device": kernel.measured.device, "launches": max(1, len(kernel.launches))}
            yield _span_event(kernel.name, KERNELS, row, start, seconds, facts)
            ends[row] = start + seconds


def _span_event(name: str, group: int, row: int, start: float, seconds: float, facts: dict[str, Any]) -> dict[str, Any]:
    event = {"ph": "X", "name": name, "cat": "compile" if group == COMPILATIONS else "kernel", "pid": group, "tid": row}
    return {**event, "ts": start * 1e6, "dur": seconds * 1e6, "args": facts}


def _process(number: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}


@dataclass(frozen=True)
class StageSpan:
    """One stage: its name, its start and end in seconds, and its number of enclosing stages."""

    stage: str
    start: float
    end: float
    depth: int


def stage_spans(timings: tuple[Timing, ...]) -> list[StageSpan]:
    """Return the stages in order, each inside its parent and after its siblings.

    Clocks of different sources may disagree by microseconds, which a nested format does not allow.
    """
    stages, ordered = {t.stage for t in timings}, sorted(timings, key=lambda t: t.start)
    children = group_pairs((t.parent if t.parent in stages else "", t) for t in ordered)
    spans: list[StageSpan] = []

    def add(parent: str, start: float, end: float, depth: int) -> None:
        for timing in children.pop(parent, ()):
            start = min(max(start, timing.start), end)
            last = min(start + timing.seconds, end)
            spans.append(StageSpan(timing.stage, start, last, depth))
            add(timing.stage, start, last, depth + 1)
            start = last

    add("", 0.0, float("inf"), 0)
    return spans
