"""Records of guards, guard failures, fixes and call explanations."""

from __future__ import annotations

import re
from typing import Literal

from engine.records.base import Record
from engine.records.bytecode import Span

Verdict = Literal["pass", "fail", "not reached", "would pass", "would fail"]
"""The last two are hypothetical: evaluated although an earlier guard had failed."""
_POSITION_TEXT, _NEXT_ITEM_TEXT, _ITEMS_LEFT_TEXT = "(its position)", "(its next item)", "items left)"
LOOP_TEXTS = (_POSITION_TEXT, _NEXT_ITEM_TEXT, _ITEMS_LEFT_TEXT)
"""Display text of how far an iterator is."""
_ITERATOR_READS = (
    (re.compile(r"\.__reduce__\(\)\[2\]"), f" {_POSITION_TEXT}"),
    (re.compile(r"(?:\.__reduce__\(\)\[1\]\[0\])+(?=\.__(?:next|length_hint)__| \()"), ""),
    (re.compile(r"(?:\.__reduce__\(\)\[1\]\[0\])+"), " (what it iterates over)"),
    (re.compile(r"\.__reduce__\(\)\[1\]\[1\]"), " (its count)"),
    (re.compile(r"\.__reduce__\(\)\[0\]"), " (its kind)"),
    (re.compile(r"\.__next__\(\)"), f" {_NEXT_ITEM_TEXT}"),
    (re.compile(r"\.__next__\(\+(\d+)\)"), lambda m: f" (item {int(m[1]) + 1} of those it has left)"),
    (re.compile(r"\.__length_hint__\(\) > 0\b"), f" (has {_ITEMS_LEFT_TEXT}"),
    (re.compile(r"\.__length_hint__\(\) > (\d+)"), rf" (has more than \1 {_ITEMS_LEFT_TEXT}"),
)


_ACCESSOR = r"\.shape\[\d+\]|\[[^\[\]]+\]|\.\w+"


def name_accessors(text: str, value: str, article: str = "") -> str:
    """Name items and attributes of a value without a name in words: ``item 0 of a value``."""

    def words(match: re.Match[str]) -> str:
        accessors = re.findall(_ACCESSOR, match[2])
        return "".join(f"{_accessor_words(a)} of " for a in reversed(accessors)) + (match[1] or article) + value

    return re.sub(rf"((?:\w+ (?:\w+ )?of )*){re.escape(value)}((?:{_ACCESSOR})+)", words, text)


def _accessor_words(accessor: str) -> str:
    name, _, item = accessor.strip("]").partition("[")
    return f"size {item}" if name == ".shape" and item else name[1:] or f"item {item}"


def name_iterator_reads(text: str) -> str:
    """Name what is read of an iterator in words: nobody writes ``it.__reduce__()[2]``."""
    for pattern, words in _ITERATOR_READS:
        text = pattern.sub(words, text)
    return text


def entry_name(id: str) -> str:
    """Return the name of a cache entry beside its function's: "entry 0" for the id ``1/0``."""
    return f"entry {id.rpartition('/')[2]}"


class GuardRecord(Record):
    """One guard.

    ``source`` is the source expression of its value (``L['x']``), ``path`` the accessors from the root.
    """

    id: str
    source: str
    path: tuple[str, ...]
    kind: str
    expected: str
    code: str = ""
    """The generated Python expression that checks the guard."""
    why: str = ""
    """One sentence: which operation read the value, and why its result depends on it."""
    span: Span | None = None
    cost_ns: float | None = None
    """Cost in nanoseconds, if measured."""
    stack: tuple[Span, ...] = ()
    """User stack that led to ``span``, outermost call first, if any."""


class GuardsRecord(Record):
    """Guards of one cache entry in order of evaluation, and the text of the generated check."""

    guards: tuple[GuardRecord, ...] = ()
    check_text: str = ""


class GuardResult(Record):
    """Verdict and actual value of one guard for one call."""

    guard: str
    verdict: Verdict
    actual: str = ""


class Fix(Record):
    """A suggested fix.

    ``code``: the fix as runnable code, if possible. ``verified``: what was rerun and that it helped; empty if
    not verified. ``unverified_reason``: why a fix that was tried is not verified ("not verifiable: ...", or
    that it did not help).
    """

    text: str
    code: str = ""
    verified: str = ""
    unverified_reason: str = ""


STORM = 3
"""Number of recompiles for one reason from which on they are a warning."""
NO_FIX = "No fix needed"
"""Start of the text of a fix where there is nothing to do."""
FEW_VALUES = f"{NO_FIX} for a few values: "
"""Start of the text of a fix that counts only after many recompiles."""


def separate_entries(name: str, *, is_flag: bool) -> Fix:
    """Return the advice for a specialized value that no symbol can replace."""
    if is_flag:
        return Fix(f"{NO_FIX}: True and False of {name} need one cache entry each.")
    return Fix(
        f"{FEW_VALUES}each value of {name} needs its own cache entry. If there are many, move the code "
        "that depends on it out of the compiled function."
    )


class GuardFailure(Record):
    """Guard failure of one entry for one call: its first failing guard, and all guard results."""

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
    """Educational hint for a common kind of failure."""
    library_span: Span | None = None
    """Line of an installed file that read the value; ``span`` is then the user's call."""

    @property
    def is_expected(self) -> bool:
        """True if no fix saves this compile: the call has to be compiled for itself."""
        return bool(self.fixes) and all(fix.text.startswith(NO_FIX) for fix in self.fixes)

    def needs_no_fix(self, count: int) -> bool:
        """Return True if that holds for ``count`` recompiles for this reason."""
        return self.is_expected and (count < STORM or all(fix.text.startswith(f"{NO_FIX}:") for fix in self.fixes))


class CallExplanation(Record):
    """Explanation of a call: the entry it would hit, and why others fail, in lookup order."""

    frame: str
    hit: str | None
    entries: tuple[str, ...]
    guard_failures: tuple[GuardFailure, ...]
    results: dict[str, tuple[GuardResult, ...]]
    """Results of all guards by entry id, including the entry that is hit."""


class ObservedSymbolEvent(Record):
    """A guard or a specialization of a symbol, and the user's line that caused it.

    ``kind`` is "guard" or "specialized".
    """

    kind: str
    text: str
    span: Span | None = None


class ObservedSymbolRecord(Record):
    """History of one symbol of torch.compile: source, hint, value range, events.

    ``source`` is empty for an unbacked symbol, whose value depends on data.
    """

    name: str
    source: str
    hint: str
    range: str
    span: Span | None = None
    events: tuple[ObservedSymbolEvent, ...] = ()
