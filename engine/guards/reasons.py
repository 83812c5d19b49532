"""Why an entry did not serve a call: the first guard that failed, in a plain sentence, with what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from engine.guards.explain import Finding, findings, guard_id, results
from engine.guards.lessons import lesson_of
from engine.ir.guard import Guard
from engine.ir.origin import Scope
from engine.records.guards import Fix, Rejection


def rejection(entry_id: str, ordered: Sequence[Guard], scope: Scope) -> Rejection | None:
    """The rejection of one call by one entry; None when all its guards hold."""
    found = findings(ordered, scope)
    index = next((i for i, f in enumerate(found) if not f.holds), None)
    if index is None:
        return None
    first = found[index]
    guard = first.guard
    return Rejection(
        entry_id,
        guard_id(index),
        guard.origin.expr,
        guard.kind_words,
        guard.expected_text(),
        first.actual(),
        sentence_of(first),
        guard.cause.span,
        fixes_of(first),
        results(found),
        lesson_of(first),
    )


def sentence_of(finding: Finding) -> str:
    """Why this guard failed."""
    guard = finding.guard
    if not finding.read.ok:
        return f"{guard.name} is {finding.read.problem}; the compiled code expects {guard.kind_words} {guard.expected_text()}."
    return guard.sentence(finding.actual())


def fixes_of(finding: Finding) -> tuple[Fix, ...]:
    """What to do, best first."""
    if not finding.read.ok:
        return (Fix(f"Set {finding.guard.name} before every call, with the same kind of value."),)
    try:
        return finding.guard.fixes(finding.read.value, finding.others)
    except (TypeError, RuntimeError, IndexError):
        return ()
