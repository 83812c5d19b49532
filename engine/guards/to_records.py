"""Convert guards to records."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.guards.codegen import condition_texts
from engine.guards.explain import guard_id
from engine.ir.guards.base import Cause, Guard
from engine.ir.sources.base import Source
from engine.ir.user_code_files import is_library_file
from engine.records.bytecode import Span
from engine.records.guards import GuardRecord, GuardsRecord

MAX_CALLERS = 6
"""Maximum number of call sites recorded for one guard."""
_SIZE = re.compile(r"\bsize_at\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*), (-?\d+)\)")
_EQUAL = re.compile(r"same(_keys)?\((.*), (?:expected|keys)\)")
_RELATION = re.compile(r"relation\(")


def guards_record(ordered: Sequence[Guard], text: str) -> GuardsRecord:
    """Return the record of an entry's guards in executed order, with the source of its check."""
    texts = condition_texts(ordered)
    paths: dict[Source, tuple[str, ...]] = {}
    return GuardsRecord(tuple(_record(i, g, texts[i], paths) for i, g in enumerate(ordered)), text)


def _readable(code: str, guard: Guard) -> str:
    """Return a condition without helpers of the generated code: ``x.size(0)``."""
    if equal := _EQUAL.fullmatch(code):
        return f"{f'list({equal[2]})' if equal[1] else equal[2]} == {guard.expected_text()}"
    if _RELATION.match(code):
        return guard.expected_text()
    return _SIZE.sub(lambda read: read[1] if read[2] == "-1" else f"{read[1]}.size({read[2]})", code)


def _record(index: int, guard: Guard, code: str, paths: dict[Source, tuple[str, ...]]) -> GuardRecord:
    if guard.source not in paths:
        paths[guard.source] = tuple(o.accessor for o in guard.source.chain())
    return GuardRecord(
        guard_id(index),
        guard.source.expr,
        paths[guard.source],
        guard.kind_label,
        guard.expected_text(),
        _readable(code, guard),
        guard.cause.reason,
        guard.cause.span,
        stack=_user_callers(guard.cause),
    )


def _user_callers(cause: Cause) -> tuple[Span, ...]:
    """Return the innermost user call sites that led to the guard's line."""
    return tuple(s for s in cause.stack if s != cause.span and not is_library_file(s.file))[-MAX_CALLERS:]
