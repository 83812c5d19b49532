"""Records of calls, timings, stage failures, skipped frames and disk caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from engine.records.base import Record
from engine.records.bytecode import Span
from engine.records.guards import GuardFailure


class Timing(Record):
    """One stage of one compilation.

    ``start``: seconds since the session's start. ``parent``: the enclosing stage.
    """

    stage: str
    start: float
    seconds: float
    parent: str = ""


class CallRecord(Record):
    """One call of a compiled frame.

    ``outcome`` is "hit", "compiled" (a cache miss that compiled ``entry``), or "python" (limit, skip or
    failure).
    ``guard_failures``: on a miss of a frame that had entries. ``inputs``: short descriptions by argument name.
    """

    index: int
    frame: str
    outcome: str
    entry: str = ""
    caller: Span | None = None
    inputs: dict[str, str] | None = None
    checked_entries: tuple[str, ...] = ()
    """Entries whose guards were evaluated, in order."""
    guard_failures: tuple[GuardFailure, ...] = ()
    guard_seconds: float = 0.0
    """Seconds that guard evaluation took."""
    start: float = 0.0
    """Seconds since the session's start; 0 if unknown.

    Taken before a hit runs, or after a miss has compiled.
    """


class SkippedRecord(Record):
    """Something that was not compiled although a user may expect it, and the reason."""

    name: str
    reason: str
    hint: str = ""
    drives_training: bool = False
    """The function runs as Python (training, generators), and what it calls is compiled."""


class StageFailure(Record):
    """Internal error of a stage; the user's code still ran.

    ``fallback``: how it ran. ``detail``: traceback for a bug report.
    """

    stage: str
    sentence: str
    fallback: str
    detail: str = ""


class DiskCacheRecord(Record):
    """Lookup in a compiler's disk cache: "hit", "miss", or "bypass" (reason in ``note``)."""

    cache: str
    outcome: str
    key: str = ""
    note: str = ""


class ArtifactRecord(Record):
    """A compiler's artifact without a specific record class; shown by name as plain text."""

    name: str
    text: str


def call_numbers(calls: Iterable[CallRecord]) -> dict[int, int]:
    """Return the number of each call among those of its frame, from 1, by its index."""
    counts: Counter[str] = Counter()
    numbers: dict[int, int] = {}
    for call in calls:
        counts[call.frame] += 1
        numbers[call.index] = counts[call.frame]
    return numbers
