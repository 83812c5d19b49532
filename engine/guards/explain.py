"""The explaining walk: every guard of an entry evaluated in executed order against one call, moving no state."""

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
    """One guard evaluated: ``holds`` is None where that could not be known without running the user's code."""

    guard: Guard
    holds: bool | None
    read: ReadResult
    others: tuple[Any, ...] = ()

    def actual_text(self) -> str:
        """What the value is, in the guard's terms."""
        if not self.read.ok:
            return self.read.error_text
        try:
            return self.guard.actual_text(self.read.value, self.others)
        except Exception as error:
            return f"unreadable ({type(error).__name__})"


def guard_id(index: int) -> str:
    """A guard's id from its place in executed order."""
    return f"g{index}"


def all_hold(ordered: Sequence[Guard], scope: FrameScope) -> bool:
    """Whether all guards hold: what the generated check says, found by walking; stops at the first that does not."""
    reader = SourceReader(scope)
    return all(_evaluate(guard, reader, set()).holds for guard in ordered)


def evaluate_guards(ordered: Sequence[Guard], scope: FrameScope) -> tuple[GuardEvaluation, ...]:
    """All guards evaluated. Past a failed guard values are read without running code, as the check would not have come so far."""
    reader = SourceReader(scope)
    failed: set[Source] = set()
    found = []
    for guard in ordered:
        finding = _evaluate(guard, reader, failed)
        if not finding.holds:
            failed.add(guard.source)
        found.append(finding)
    return tuple(found)


def _evaluate(guard: Guard, reader: SourceReader, failed: set[Source]) -> GuardEvaluation:
    reads = [reader.read(o, doubtful=bool(failed) and not failed.isdisjoint(o.chain()[:-1])) for o in guard.sources]
    bad = next((r for r in reads if not r.ok), None)
    if bad is not None:
        return GuardEvaluation(guard, False if bad.is_safe else None, bad)
    value, *others = (r.value for r in reads)
    try:
        verdict = bool(guard.test(value, tuple(others)))
    except Exception:
        verdict = False
    return GuardEvaluation(guard, verdict, reads[0], tuple(others))


def explain(ordered: Sequence[Guard], scope: FrameScope) -> tuple[GuardResult, ...]:
    """Each guard's verdict in executed order: pass up to the first fail, then what would pass or fail had the check gone on."""
    return guard_results(evaluate_guards(ordered, scope))


def guard_results(found: Sequence[GuardEvaluation]) -> tuple[GuardResult, ...]:
    """Findings as records; their ids are the guards' places in executed order."""
    told = []
    has_failed = False
    for index, finding in enumerate(found):
        told.append(GuardResult(guard_id(index), _verdict(finding.holds, has_failed), finding.actual_text()))
        has_failed = has_failed or not finding.holds
    return tuple(told)


def _verdict(verdict: bool | None, hypothetical: bool) -> Verdict:
    if not hypothetical:
        return "pass" if verdict else "fail"
    if verdict is None:
        return "not reached"
    return "would pass" if verdict else "would fail"
