"""Reason of a cache miss: an entry's first failed guard in a sentence, with fixes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from engine.guards.explain import GuardEvaluation, evaluate_guards, guard_id, guard_results
from engine.guards.failure_hints import hint_for
from engine.ir.guards.base import Guard
from engine.ir.sources.base import MISSING, FrameScope
from engine.records.guards import NO_FIX, Fix, GuardFailure

NO_MODULES: Mapping[str, Callable[[], Any]] = MappingProxyType({})


def first_guard_failure(
    entry_id: str, ordered: Sequence[Guard], scope: FrameScope, modules: Mapping[str, Callable[[], Any]] = NO_MODULES
) -> GuardFailure | None:
    """Return the first guard failure of an entry for a call; None if all guards hold.

    ``modules``: weak references to the arguments that are modules and that the entry was compiled for.
    """
    evaluations = evaluate_guards(ordered, scope)
    index = next((i for i, f in enumerate(evaluations) if not f.holds), None)
    if index is None:
        return None
    first = evaluations[index]
    guard, message, fixes = first.guard, failure_message(first), failure_fixes(first)
    root, *below = guard.source.chain()
    name = getattr(root, "variable_name", "")
    if name in modules and (argument := scope.arguments.get(name)) is not modules[name]():
        message = f"{name} is another {type(argument).__name__} than the one before: {message}" if below else message
        fixes = (Fix(f"{NO_FIX}: another module may need a cache entry of its own."),)
    return GuardFailure(
        entry_id,
        guard_id(index),
        guard.source.named_expr,
        guard.kind_label,
        guard.expected_text(),
        first.actual_text(),
        message,
        guard.cause.span,
        fixes,
        guard_results(evaluations),
        hint_for(first),
    )


def failure_message(finding: GuardEvaluation) -> str:
    """Return a sentence that explains why this guard failed."""
    guard = finding.guard
    if not finding.read.ok:
        return f"{guard.user_expr} is {finding.read.error_text}; the compiled code expects {guard.kind_label} {guard.expected_text()}."
    if finding.read.value is MISSING:
        return f"{guard.user_expr} does not exist in this call; the compiled code expects {guard.kind_label} {guard.expected_text()}."
    return guard.failure_message(finding.actual_text())


def failure_fixes(finding: GuardEvaluation) -> tuple[Fix, ...]:
    """Return possible fixes, best first."""
    if not finding.read.ok:
        return (Fix(f"Set {finding.guard.user_expr} before every call, with a value of the same type."),)
    try:
        return finding.guard.fixes(finding.read.value, finding.others)
    except (TypeError, RuntimeError, IndexError):
        return ()
