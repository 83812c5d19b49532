"""Guards as records."""

from __future__ import annotations

from collections.abc import Sequence

from engine.guards.compile import condition_texts
from engine.guards.explain import guard_id
from engine.ir.files import is_library_file
from engine.ir.guard import Cause, Guard
from engine.ir.origin import Origin
from engine.records.bytecode import Span
from engine.records.guards import GuardRecord, GuardsRecord

MAX_CALLERS = 6
"""Calls kept for one guard."""


def guards_record(ordered: Sequence[Guard], text: str) -> GuardsRecord:
    """All guards of an entry in executed order, with the text of its check."""
    texts = condition_texts(ordered)
    paths: dict[Origin, tuple[str, ...]] = {}
    return GuardsRecord(tuple(_record(i, g, texts[i], paths) for i, g in enumerate(ordered)), text)


def _record(index: int, guard: Guard, code: str, paths: dict[Origin, tuple[str, ...]]) -> GuardRecord:
    if guard.origin not in paths:
        paths[guard.origin] = tuple(o.step for o in guard.origin.chain())
    return GuardRecord(
        guard_id(index),
        guard.origin.expr,
        paths[guard.origin],
        guard.kind_words,
        guard.expected_text(),
        code,
        guard.cause.why,
        guard.cause.span,
        stack=_callers(guard.cause),
    )


def _callers(cause: Cause) -> tuple[Span, ...]:
    """The innermost of the user's own calls that led to the guard's line."""
    return tuple(s for s in cause.stack if s != cause.span and not is_library_file(s.file))[-MAX_CALLERS:]
