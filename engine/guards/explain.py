"""Evaluate every guard of an entry for one call, in executed order, without side effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.guards.safe_read import ReadResult, SourceReader
from engine.ir.guards.base import Guard
from engine.ir.sources.base import FrameScope, Source
from engine.records.guards import GuardResult, Verdict


@dataclass(frozen=True)
class GuardEvaluation:
    """Result of one guard; ``holds`` is None if only user code could decide it."""

    guard: Guard
    holds: bool | None
    read: ReadResult
    others: tuple[Any, ...] = ()

    def actual_text(self) -> str:
        """Describe the actual value in the guard's terms."""
        if not self.read.ok:
            return self.read.error_text
        try:
            return self.guard.actual_text(self.read.value, self.others)
        except Exception as error:
            return f"unreadable ({type(error).__name__})"


def guard_id(index: int) -> str:
    """Return the id of a guard from its position in executed order."""
    return f"g{index}"


def evaluate_guards(ordered: Sequence[Guard], scope: FrameScope) -> tuple[GuardEvaluation, ...]:
    """Evaluate all guards.

    Values after a failed guard are read without running user code, because the check would not have read them.
    """
    reader = SourceReader(scope)
    failed: set[Source] = set()
    evaluations = []
    for guard in ordered:
        finding = _evaluate(guard, reader, failed)
        if not finding.holds:
            failed.add(guard.source)
        evaluations.append(finding)
    return tuple(evaluations)


def _evaluate(guard: Guard, reader: SourceReader, failed: set[Source]) -> GuardEvaluation:
    reads = [reader.read(o, doubtful=bool(failed) and not failed.isdisjoint(o.ancestors)) for o in guard.sources]
    bad = next((r for r in reads if not r.ok), None)
    if bad is not None:
        return GuardEvaluation(guard, False if bad.is_safe else None, bad)
    value, *other_values = (r.value for r in reads)
    try:
        verdict = bool(guard.test(value, tuple(other_values)))
    except Exception:
        verdict = False
    return GuardEvaluation(guard, verdict, reads[0], tuple(other_values))


def explain(ordered: Sequence[Guard], scope: FrameScope) -> tuple[GuardResult, ...]:
    """Return each guard's verdict in executed order.

    Guards pass up to the first failure; later verdicts are "would pass", "would fail" or "not reached".
    """
    return guard_results(evaluate_guards(ordered, scope))


def guard_results(evaluations: Sequence[GuardEvaluation]) -> tuple[GuardResult, ...]:
    """Convert guard evaluations to records; ids are positions in executed order."""
    results = []
    has_failed = False
    for index, finding in enumerate(evaluations):
        results.append(GuardResult(guard_id(index), _verdict(finding.holds, has_failed), finding.actual_text()))
        has_failed = has_failed or not finding.holds
    return tuple(results)


def _verdict(verdict: bool | None, hypothetical: bool) -> Verdict:
    if not hypothetical:
        return "pass" if verdict else "fail"
    if verdict is None:
        return "not reached"
    return "would pass" if verdict else "would fail"
