"""Reason of a cache miss: an entry's first failed guard in a sentence, with fixes."""

from __future__ import annotations

from collections.abc import Sequence

from engine.guards.explain import GuardEvaluation, evaluate_guards, guard_id, guard_results
from engine.guards.failure_hints import hint_for
from engine.ir.guards.base import Guard
from engine.ir.sources.base import FrameScope
from engine.records.guards import Fix, GuardFailure


def first_guard_failure(entry_id: str, ordered: Sequence[Guard], scope: FrameScope) -> GuardFailure | None:
    """Return the first guard failure of an entry for a call; None if all guards hold."""
    found = evaluate_guards(ordered, scope)
    index = next((i for i, f in enumerate(found) if not f.holds), None)
    if index is None:
        return None
    first = found[index]
    guard = first.guard
    return GuardFailure(
        entry_id,
        guard_id(index),
        guard.source.named_expr,
        guard.kind_label,
        guard.expected_text(),
        first.actual_text(),
        failure_message(first),
        guard.cause.span,
        failure_fixes(first),
        guard_results(found),
        hint_for(first),
    )


def failure_message(finding: GuardEvaluation) -> str:
    """Return a sentence that explains why this guard failed."""
    guard = finding.guard
    if not finding.read.ok:
        return f"{guard.user_expr} is {finding.read.error_text}; the compiled code expects {guard.kind_label} {guard.expected_text()}."
    return guard.failure_message(finding.actual_text())


def failure_fixes(finding: GuardEvaluation) -> tuple[Fix, ...]:
    """Return possible fixes, best first."""
    if not finding.read.ok:
        return (Fix(f"Set {finding.guard.user_expr} before every call, with a value of the same type."),)
    try:
        return finding.guard.fixes(finding.read.value, finding.others)
    except (TypeError, RuntimeError, IndexError):
        return ()
