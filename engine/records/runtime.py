"""Calls, times, and what did not get compiled."""

from __future__ import annotations

from dataclasses import dataclass

from engine.records.base import Record
from engine.records.bytecode import Span
from engine.records.guards import GuardFailure


@dataclass(frozen=True, slots=True)
class Timing(Record):
    """One stage of one compilation. ``start`` counts seconds from the session's start; nested stages name their ``parent`` stage."""

    stage: str
    start: float
    seconds: float
    parent: str = ""


@dataclass(frozen=True, slots=True)
class CallRecord(Record):
    """One call of a compiled frame.

    ``outcome`` is "hit", "compiled" (a miss that compiled ``entry``), "python" (left to Python: limit, skip or failure).
    ``rejections`` are filled on misses of a frame that already had entries. ``inputs`` maps argument names to short descriptions.
    """

    index: int
    frame: str
    outcome: str
    entry: str = ""
    caller: Span | None = None
    inputs: dict[str, str] | None = None
    checked_entries: tuple[str, ...] = ()
    """Entries that were checked, in order."""
    guard_failures: tuple[GuardFailure, ...] = ()
    guard_seconds: float = 0.0
    """Time that the entries' checks took."""
    start: float = 0.0
    """Seconds from the session's start to when the call was told: before a hit runs, after a miss was compiled. 0 where unknown."""


@dataclass(frozen=True, slots=True)
class SkippedRecord(Record):
    """Something that a person may have expected to be compiled, and the reason that it was not."""

    name: str
    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class StageFailure(Record):
    """A stage of ours failed; the user's code still ran (``fallback`` says how). ``detail`` is for a bug report."""

    stage: str
    sentence: str
    fallback: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DiskCacheRecord(Record):
    """What a compiler's cache on disk answered. ``outcome`` is "hit", "miss" or "bypass"; ``note`` is the reason of a bypass."""

    cache: str
    outcome: str
    key: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class ArtifactRecord(Record):
    """A text that a compiler told and that has no record of its own kind: shown by name, as it is."""

    name: str
    text: str
