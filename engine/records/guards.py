"""What must hold for compiled code to be reused, and what happened when it did not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.records.base import Record
from engine.records.bytecode import Span

Verdict = Literal["pass", "fail", "not reached", "would pass", "would fail"]
"""The last two are hypothetical: evaluated after a guard had already failed."""


@dataclass(frozen=True, slots=True)
class GuardRecord(Record):
    """One guard. ``origin`` is the value it is on in the field's notation (``L['x']``), ``path`` the accessors from root to leaf."""

    id: str
    source: str
    path: tuple[str, ...]
    kind: str
    expected: str
    code: str = ""
    """The generated Python expression that checks it."""
    why: str = ""
    """One sentence: what looked at the value, and when that makes a difference."""
    span: Span | None = None
    cost_ns: float | None = None
    """Measured on demand, else None."""
    stack: tuple[Span, ...] = ()
    """The user's calls that led to ``span``, outermost first, where there were any."""


@dataclass(frozen=True, slots=True)
class GuardsRecord(Record):
    """All guards of one cache entry, in executed order, with the text of the generated check."""

    guards: tuple[GuardRecord, ...] = ()
    check_text: str = ""


@dataclass(frozen=True, slots=True)
class GuardResult(Record):
    """One guard evaluated against one call."""

    guard: str
    verdict: Verdict
    actual: str = ""


@dataclass(frozen=True, slots=True)
class Fix(Record):
    """A suggested change.

    ``code`` is runnable where there is one; ``verified`` says what was re-run and that it helped, and is empty when it was not; ``tried`` says why a
    fix that was tried is not verified ("not verifiable: ...", or that it did not help).
    """

    text: str
    code: str = ""
    verified: str = ""
    unverified_reason: str = ""


@dataclass(frozen=True, slots=True)
class GuardFailure(Record):
    """Why one cache entry did not serve one call: its first failing guard in executed order, and all guards evaluated."""

    entry: str
    guard: str
    source: str
    kind: str
    expected: str
    actual: str
    sentence: str
    span: Span | None = None
    fixes: tuple[Fix, ...] = ()
    results: tuple[GuardResult, ...] = ()
    hint: str = ""
    """What there is to learn from it, where the failure is of a kind that people meet often."""


@dataclass(frozen=True, slots=True)
class CallExplanation(Record):
    """Which entry a call would hit, and guard by guard why the others would not. ``entries`` are in look-up order."""

    frame: str
    hit: str | None
    entries: tuple[str, ...]
    guard_failures: tuple[GuardFailure, ...]
    results: dict[str, tuple[GuardResult, ...]]
    """Per entry id, all its guards evaluated, also those of the entry that hits."""


@dataclass(frozen=True, slots=True)
class ObservedSymbolEvent(Record):
    """Something that was concluded about a symbol, and the user's line that asked. ``kind`` is "guard" or "specialised"."""

    kind: str
    text: str
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class ObservedSymbolRecord(Record):
    """The story of one symbol: the size or number it stands for (``source``), its value at compile time, its range, what was concluded.

    ``source`` is empty for an unbacked symbol, whose value only data decides.
    """

    name: str
    source: str
    hint: str
    range: str
    span: Span | None = None
    events: tuple[ObservedSymbolEvent, ...] = ()
