"""Guard tree of one cache entry, with verdicts for every call for which a guard failed."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from engine.records.bytecode import Span
from engine.records.findings import useful_fixes
from engine.records.guards import CallExplanation, Fix, GuardFailure, GuardRecord, entry_name
from engine.records.runtime import CallRecord, call_numbers
from engine.records.session import CompilationRecord, Session
from engine.records.trace import SymbolAssumption, TracedSymbolRecord
from notebook_ext.views import source_lines
from notebook_ext.views.format_text import STACK_VALUE, one_line, pluralize, sanitize

_LineReader = Callable[[Span | None], dict[str, Any]]


@dataclass
class _Branch:
    """Node of the tree: a value, the guards on it and the values below it, in check order."""

    label: str
    count: int = 0
    """Number of guards on the value and below it."""
    guards: list[int] = field(default_factory=list)
    children: dict[str, _Branch] = field(default_factory=dict)


def guards(session: Session, compilation: str) -> dict[str, Any]:
    """Return the guards in check order, the tree over them, and the cases.

    There is one case for each call for which a guard of this entry failed.

    ``tree`` is flat and in display order: ``guard`` is an index into ``guards`` (-1: a value), ``parent``
    an index into ``tree`` (-1: top).

    Raises:
        KeyError: there is no such compilation.
    """
    record = session.compilation(compilation)
    guard_records = record.guards.guards if record.guards else ()
    line_data = _line_reader(session, record)
    numbers = call_numbers(session.calls)
    return {
        "compilation": record.id,
        "guards": [_guard_data(session, line_data, g) for g in guard_records],
        "tree": _tree_rows(guard_records),
        "cases": [
            _case_row(session, call, r, guard_records, numbers[call.index])
            for call in session.calls
            for r in call.guard_failures
            if names_entry(r.entry, record)
        ],
        "symbols": symbol_rows(session, record),
        "empty": "" if guard_records else _why_empty(record),
    }


def symbol_rows(session: Session, record: CompilationRecord) -> list[dict[str, Any]]:
    """Return the history of each symbol: sources, value range, specialization, assumptions."""
    line_data = _line_reader(session, record)
    return [_symbol_data(line_data, s) for s in (record.trace.symbols if record.trace else ())]


def _symbol_data(line_data: _LineReader, symbol: TracedSymbolRecord) -> dict[str, Any]:
    return {
        "name": sanitize(symbol.name),
        "places": [sanitize(p) for p in symbol.sources],
        "hint": sanitize(symbol.hint),
        "why": sanitize(symbol.why),
        "range": symbol_range(symbol),
        "became": sanitize(symbol.specialized_to),
        "specialized_by": None if symbol.specialized_by is None else _assumption_data(line_data, symbol.specialized_by),
        "relations": [_assumption_data(line_data, r) for r in symbol.assumptions],
    }


def symbol_range(symbol: TracedSymbolRecord) -> str:
    """Return the value range of a symbol: ``2 to 64``, ``2 or more``, ``any``."""
    if symbol.specialized_to:
        return f"{'only' if symbol.is_constant else '='} {sanitize(symbol.specialized_to)}"
    if symbol.low is None:
        return "any" if symbol.high is None else f"at most {symbol.high}"
    return f"{symbol.low} or more" if symbol.high is None else f"{symbol.low} to {symbol.high}"


def _assumption_data(line_data: _LineReader, assumption: SymbolAssumption) -> dict[str, Any]:
    return {"text": sanitize(assumption.text), "why": sanitize(assumption.why), **line_data(assumption.span)}


def _line_reader(session: Session, record: CompilationRecord) -> _LineReader:
    """Return a cached function for the number, name, text and ordinal of a line."""
    ordinals = source_lines.ordinals(session, record)

    @functools.cache
    def line_data(span: Span | None) -> dict[str, Any]:
        return {
            "line": span.line if span else 0,
            "place": source_lines.line_name(session, span),
            "source": sanitize(source_lines.source_line(session, span)),
            "ordinal": ordinals.of(span),
        }

    return line_data


def fix_rows(fixes: Iterable[Fix]) -> list[dict[str, str]]:
    """Return the suggested fixes, best first, each with the result of its verification."""
    return [
        {
            "text": sanitize(f.text),
            "code": sanitize(f.code),
            "verified": sanitize(f.verified),
            "unverified_reason": sanitize(f.unverified_reason),
        }
        for f in fixes
    ]


def what_if(session: Session, explanation: CallExplanation, compilation: str) -> dict[str, Any]:
    """Return the outcome of a hypothetical call.

    It holds the entry that the call would hit, the guard failures of the others, and verdicts for one
    entry's guards.
    """
    record = session.compilation(compilation)
    guard_records = record.guards.guards if record.guards else ()
    rejection = next((r for r in explanation.guard_failures if names_entry(r.entry, record)), None)
    case = None
    if rejection is not None:
        case = _case_row(session, _hypothetical_call(record), rejection, guard_records) | {"title": "what if"}
    return {
        "hit": explanation.hit or "",
        "text": f"This call would use {entry_name(explanation.hit)}."
        if explanation.hit
        else "No entry's guards pass: this call would recompile.",
        "rejections": [
            {
                "entry": r.entry.rpartition("/")[2],
                "sentence": one_line(r.sentence, 300),
                "is_reached": _is_reached(explanation, r.entry),
            }
            for r in explanation.guard_failures
        ],
        "case": case,
    }


def _is_reached(explanation: CallExplanation, entry: str) -> bool:
    """Return True if look-up checks an entry: it stops at the entry that is hit."""
    order = explanation.entries
    return explanation.hit not in order or entry not in order or order.index(entry) < order.index(explanation.hit)


HYPOTHETICAL_CALL = -1
"""Call number of a hypothetical call."""


def _hypothetical_call(record: CompilationRecord) -> CallRecord:
    return CallRecord(HYPOTHETICAL_CALL, record.frame, "")


def hypothetical_case(session: Session, explanation: CallExplanation, compilation: str) -> dict[str, Any] | None:
    """Return the verdicts of an entry's guards for a hypothetical call.

    Return None if the explanation does not know the entry.
    """
    record = session.compilation(compilation)
    guard_records = record.guards.guards if record.guards else ()
    if record.id not in explanation.entries:
        return None
    failure = next((r for r in explanation.guard_failures if names_entry(r.entry, record)), None)
    passing = GuardFailure(
        record.id, "", "", "", "", "", "Every guard passes.", results=explanation.results.get(record.id, ())
    )
    case = _case_row(session, _hypothetical_call(record), failure or passing, guard_records)
    return case | {"call": HYPOTHETICAL_CALL, "title": "hypothetical call", "passes": failure is None}


def names_entry(entry: str, record: CompilationRecord) -> bool:
    """Return True if an entry id names this compilation; the frame in the id is optional."""
    return entry in (record.id, record.id.rpartition("/")[2] if "/" not in entry else "")


def _why_empty(record: CompilationRecord) -> str:
    return (
        "This entry has no guards: every call hits it."
        if record.guards
        else "No guards were recorded for this compilation."
    )


def _guard_data(session: Session, line_data: _LineReader, guard: GuardRecord) -> dict[str, Any]:
    return {
        "origin": sanitize(guard.source),
        "path": [sanitize(p) for p in guard.path],
        "kind": sanitize(guard.kind),
        "expected": sanitize(guard.expected),
        "code": sanitize(guard.code),
        "why": sanitize(guard.why),
        "cost": guard.cost_ns,
        **line_data(guard.span),
        "callers": [source_lines.line_name(session, s) for s in reversed(guard.stack)],
    }


_STACK_STEP = re.compile(r"L\['__(?:stack_|_stack)\d+'\]")


def _tree_rows(guard_records: tuple[GuardRecord, ...]) -> list[dict[str, Any]]:
    root = _Branch("")
    for i, guard in enumerate(guard_records):
        branch = root
        for step in guard.path or (guard.source or "global state",):
            if step not in branch.children:
                branch.children[step] = _Branch(STACK_VALUE if _STACK_STEP.fullmatch(step) else step)
            branch = branch.children[step]
            branch.count += 1
        branch.guards.append(i)
    rows: list[dict[str, Any]] = []
    for branch in root.children.values():
        _append_rows(branch, -1, 0, rows)
    return rows


def _append_rows(branch: _Branch, parent: int, depth: int, rows: list[dict[str, Any]]) -> None:
    label = branch.label
    while not branch.guards and len(branch.children) == 1:
        (branch,) = branch.children.values()
        label += branch.label
    me = len(rows)
    if branch.count == 1 and branch.guards:
        rows.append(
            {"guard": branch.guards[0], "parent": parent, "depth": depth, "label": sanitize(label), "count": ""}
        )
        return
    rows.append(
        {
            "guard": -1,
            "parent": parent,
            "depth": depth,
            "label": sanitize(label),
            "count": pluralize(branch.count, "guard"),
        }
    )
    rows.extend({"guard": i, "parent": me, "depth": depth + 1, "label": "", "count": ""} for i in branch.guards)
    for below in branch.children.values():
        _append_rows(below, me, depth + 1, rows)


def _guess_failed_guard(rejection: GuardFailure, guard_records: tuple[GuardRecord, ...]) -> str:
    """Return the guard that a textual reason refers to, if it names one.

    A trace of torch.compile does not number its guards.
    """
    for guard in guard_records:
        if guard.source and guard.source == rejection.source:
            is_tensor = guard.kind == "TENSOR_MATCH"
            if is_tensor == rejection.kind.startswith("tensor"):
                return guard.id
        elif guard.code and guard.code.partition("  ")[0] == rejection.source:
            return guard.id
    return ""


def _case_row(
    session: Session,
    call: CallRecord,
    rejection: GuardFailure,
    guard_records: tuple[GuardRecord, ...],
    number: int = 0,
) -> dict[str, Any]:
    """Return the verdicts of guards for a call, the ``number``-th of its frame."""
    numbers = {g.id: i for i, g in enumerate(guard_records)}
    guard = rejection.guard or _guess_failed_guard(rejection, guard_records)
    verdicts = [["not reached" if guard in numbers else "", ""] for _ in guard_records]
    for result in rejection.results:
        if result.guard in numbers:
            verdicts[numbers[result.guard]] = [result.verdict, sanitize(result.actual)]
    failed = numbers.get(guard, -1)
    if failed >= 0 and not rejection.results:
        verdicts[:failed] = [["pass", ""] for _ in range(failed)]
    if failed >= 0:
        verdicts[failed] = ["fail", verdicts[failed][1] or sanitize(rejection.actual)]
    line = source_lines.line_name(session, call.caller)
    compiled = [c for c in session.compilations if c.id == call.entry and call.outcome == "compiled"]
    fixes = useful_fixes(session, rejection, compiled, lambda span: source_lines.line_name(session, span))
    return {
        "call": number,
        "title": f"call {number}" + (f", {line}" if line else ""),
        "inputs": ", ".join(f"{sanitize(k)} {sanitize(v)}" for k, v in (call.inputs or {}).items()),
        "failed": failed,
        "verdicts": verdicts,
        "sentence": one_line(rejection.sentence, 300),
        "expected": sanitize(rejection.expected),
        "actual": sanitize(rejection.actual),
        "fixes": fix_rows(fixes),
        "lesson": sanitize(rejection.hint),
    }
