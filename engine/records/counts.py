"""Counts of a session. All views take their numbers from here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.group_pairs import group_pairs
from engine.records.graph import NodeRecord
from engine.records.guards import STORM, GuardFailure, GuardRecord
from engine.records.kernels import KernelRecord
from engine.records.lowering import ExternCall
from engine.records.session import CompilationRecord, FrameRecord, Session
from engine.records.trace import BreakRecord

_USER_ERROR_KIND = "raises"
"""Kind of a break record where the traced code raises: no graph breaks there."""
_NO_CALL_KINDS = frozenset(("allocation", "empty-tensor"))
"""Kinds of ATen nodes that compute nothing: constants, allocations, empty results."""
_FAILED = ("fail", "would fail")
"""Verdicts on guards that do not hold."""
_SIZE_KINDS = ("shape", "stride")
_SIZES = (*_SIZE_KINDS, "tensor size", "size")
_TENSOR_PROPERTIES = {*_SIZES, "dtype", "device", "ndim", "requires_grad", "layout"}
_INTEGER = re.compile(r"-?\d+")


@dataclass(frozen=True)
class RootGroup:
    """A root and all frames compiled because of it: callees and resume functions."""

    root: FrameRecord
    frames: tuple[FrameRecord, ...]
    compilations: tuple[CompilationRecord, ...]


@dataclass(frozen=True)
class Counts:
    """Numbers of one compilation or of a session.

    ``breaks`` are graph breaks, ``errors`` places where the traced code raises. ``aten_calls`` are the calls
    of the forward and backward programs that compute something. ``compiles`` counts every compilation: the
    first of each function and resume function, and the recompiles.
    """

    graphs: int
    breaks: int
    recompiles: int
    kernels: int
    aten_calls: int = field(default=0, repr=False)
    errors: int = field(default=0, repr=False)
    compiles: int = field(default=0, repr=False)


def counts(session: Session) -> Counts:
    """Count over all compilations of a session; a recompiled function has one graph."""
    root_groups = groups(session)
    return Counts(
        graphs=sum(graph_count(g) for g in root_groups),
        breaks=sum(len(breaks_of(g.compilations)) for g in root_groups),
        recompiles=sum(len(recompiles_of(session, g)) for g in root_groups),
        kernels=sum(len(unique_kernels(c)) for c in session.compilations),
        aten_calls=sum(len(aten_calls_of(c)) for c in session.compilations),
        errors=sum(len(errors_of(g.compilations)) for g in root_groups),
        compiles=len(session.compilations),
    )


def compilation_counts(compilation: CompilationRecord) -> Counts:
    """Count in one compilation, whose stages all show one graph."""
    return Counts(
        graphs=int(has_graph(compilation)),
        breaks=len(breaks_of((compilation,))),
        recompiles=0,
        kernels=len(unique_kernels(compilation)),
        aten_calls=len(aten_calls_of(compilation)),
        errors=len(errors_of((compilation,))),
        compiles=1,
    )


def compile_seconds(compilation: CompilationRecord) -> float:
    """Return the seconds of a compilation: the sum of its top-level stages."""
    return sum(t.seconds for t in compilation.timings if not t.parent)


def unique_kernels(compilation: CompilationRecord) -> list[KernelRecord]:
    """Return the kernels of a compilation, each once."""
    return list({k.id: k for k in compilation.kernels}.values())


def aten_calls_of(compilation: CompilationRecord) -> list[ExternCall]:
    """Return the ATen calls of the forward and backward programs that compute something."""
    lowerings = [x for x in (compilation.lowering, compilation.backward_lowering) if x is not None]
    return [e for lowering in lowerings for e in lowering.externs if e.kind not in _NO_CALL_KINDS]


def nodes_by_id(compilation: CompilationRecord, ids: Iterable[str]) -> dict[str, NodeRecord]:
    """Return the nodes with these ids; graphs that hold none of them need not be parsed."""
    distinct = set(ids) - {""}
    return {n.id: n for g in compilation.graphs for n in g.find_nodes(distinct)} if distinct else {}


def graph_count(group: RootGroup) -> int:
    """Count the functions of a group that have a graph."""
    return len({c.frame for c in group.compilations if has_graph(c)})


def has_graph(compilation: CompilationRecord) -> bool:
    """Return True if the compilation has a graph that computes something."""
    if compilation.compiler == "torch":  # Its trace has no empty graphs, and its graphs are parsed only on access.
        return bool(compilation.graphs)
    return any(n.op not in ("placeholder", "output", "get_attr") for g in compilation.graphs for n in g.nodes) or any(
        g.text for g in compilation.graphs
    )


def groups(session: Session) -> list[RootGroup]:
    """Return frames grouped by the root they were compiled for, in the order of first call."""
    frames = {f.id: f for f in session.frames}
    of_root = group_pairs((_root(frame, frames).id, frame) for frame in session.frames)
    root_groups = []
    for id, members in of_root.items():
        ids = {f.id for f in members}
        root_groups.append(
            RootGroup(frames[id], tuple(members), tuple(c for c in session.compilations if c.frame in ids))
        )
    return [g for g in root_groups if g.compilations]


def _root(frame: FrameRecord, frames: dict[str, FrameRecord]) -> FrameRecord:
    seen = set()
    while frame.parent in frames and frame.id not in seen:
        seen.add(frame.id)
        frame = frames[frame.parent]
    return frame


def is_user_error(record: BreakRecord) -> bool:
    """Return True if the record is no graph break but a place where the user's code raises."""
    return record.kind == _USER_ERROR_KIND


def breaks_of(compilations: tuple[CompilationRecord, ...]) -> list[tuple[CompilationRecord, BreakRecord]]:
    """Return the distinct graph breaks, each with the first compilation that has it."""
    return [pair for pair in breaks_and_errors_of(compilations) if not is_user_error(pair[1])]


def errors_of(compilations: tuple[CompilationRecord, ...]) -> list[tuple[CompilationRecord, BreakRecord]]:
    """Return the places where the user's code raises, each with its first compilation."""
    return [pair for pair in breaks_and_errors_of(compilations) if is_user_error(pair[1])]


def breaks_and_errors_of(compilations: tuple[CompilationRecord, ...]) -> list[tuple[CompilationRecord, BreakRecord]]:
    """Return graph breaks and errors, each with the first compilation that has it.

    An exception that passes through a callee and its caller is one error.
    """
    first_by_key: dict[tuple[Any, ...], tuple[CompilationRecord, BreakRecord]] = {}
    raised: set[str] = set()
    for compilation in compilations:
        for record in compilation.trace.breaks if compilation.trace else ():
            if is_user_error(record) and record.context:
                if record.context in raised:
                    continue
                raised.add(record.context)
            line_or_context = (
                (record.span.file, record.span.line, record.span.column) if record.span else record.context
            )
            first_by_key.setdefault((record.kind, record.skips_frame, line_or_context), (compilation, record))
    return list(first_by_key.values())


def frames_resumed_after(frames: Iterable[FrameRecord], record: BreakRecord) -> set[str]:
    """Return the ids of the resume functions that a graph break made.

    The graph may end some lines before the code that broke it: where a value was computed that the code needs.
    """
    if record.skips_frame or record.span is None:
        return set()
    spans = (*record.stack, record.span)
    resumed = {f.id: f.resumes_after for f in frames if f.resumes_after}
    exact = {id for id, after in resumed.items() if any((after.file, after.line) == (s.file, s.line) for s in spans)}
    before = {id: a.line for id, a in resumed.items() if a.file == spans[0].file and a.line < spans[0].line}
    return exact or {id for id, line in before.items() if line == max(before.values())}


def recompiles_of(session: Session, group: RootGroup) -> list[CompilationRecord]:
    """Return the compilations after the first of their frame.

    If an earlier session has the first one, also compilations caused by a guard failure of its entries.
    """
    seen: set[str] = set()
    later_compilations = []
    for compilation in group.compilations:
        if compilation.frame in seen or causing_guard_failure(session, compilation.id) is not None:
            later_compilations.append(compilation)
        seen.add(compilation.frame)
    return later_compilations


def causing_guard_failure(session: Session, compilation: str) -> GuardFailure | None:
    """Return the guard failure that caused a compilation; None if none did."""
    for call in session.calls:
        if call.entry == compilation and call.outcome == "compiled" and call.guard_failures:
            return nearest_guard_failure(call.guard_failures)
    return None


@dataclass(frozen=True)
class ChangedValue:
    """Values that a fix makes irrelevant to guards; with ``is_dynamic``, all sizes, too."""

    kind: str
    sources: tuple[str, ...]
    is_dynamic: bool = False

    def covers(self, guard: GuardRecord) -> bool:
        """Return True if a guard cannot fail any more."""
        is_integer = self.kind == guard.kind == "equals" and _INTEGER.fullmatch(guard.expected) is not None
        if self.is_dynamic and (guard.kind in _SIZES or is_integer):
            return True
        if guard.source in self.sources:
            both = {self.kind, guard.kind}
            return len(both) == 1 or not both <= _TENSOR_PROPERTIES or both <= {"ndim", *_SIZES}
        return any(s.startswith(guard.source) or guard.source.startswith(s) for s in self.sources)


def failed_guards(session: Session, failure: GuardFailure) -> list[GuardRecord]:
    """Return all guards of an entry that failed for a call; at least the first one."""
    entry = next((c for c in session.compilations if c.id == failure.entry and c.guards), None)
    guards = {g.id: g for g in entry.guards.guards} if entry and entry.guards else {}
    failed = [guards[r.guard] for r in failure.results if r.verdict in _FAILED and r.guard in guards]
    first = guards.get(failure.guard)
    return failed or [first or GuardRecord(failure.guard, failure.source, (), failure.kind, failure.expected)]


def changed_value(session: Session, failure: GuardFailure, also: Iterable[str] = ()) -> ChangedValue:
    """Return what the fix of a guard failure covers, with other sources that it is for."""
    first = next((g for g in failed_guards(session, failure) if g.id == failure.guard), None)
    is_dynamic = failure.kind in _SIZES or any("dynamic=True" in f.code for f in failure.fixes)
    return ChangedValue(failure.kind, (first.source if first else failure.source, *also), is_dynamic)


def saved_compilations(session: Session, frame: str, changed: ChangedValue) -> list[CompilationRecord]:
    """Return the recompiles of a frame that one fix saves: it covers each failed guard."""
    saved: dict[str, CompilationRecord] = {}
    compilations = {c.id: c for c in session.compilations}
    for call in session.calls:
        if call.frame == frame and call.outcome == "compiled" and call.entry in compilations:
            hits = (
                all(map(changed.covers, failed_guards(session, f)))
                for f in call.guard_failures
                if f.entry not in saved and not f.needs_no_fix(STORM)
            )
            if any(hits):
                saved[call.entry] = compilations[call.entry]
    return list(saved.values())


def nearest_guard_failure(failures: Sequence[GuardFailure]) -> GuardFailure:
    """Return the failure of the entry that fits a call best.

    Without verdicts, as in logs, it is the first, which torch names for the newest entry. Else one of a size that a fix
    can cover, else one with the fewest failed guards, else one with the most passed guards, else the newest whose value differs. What another entry rejects may not have changed at all since the entry that the call would have
    hit. Sizes are checked after types and objects.
    """

    def distance(failure: GuardFailure) -> tuple[bool, int, int]:
        failed = sum(r.verdict in _FAILED for r in failure.results)
        return failure.kind not in _SIZE_KINDS or failure.is_expected, failed, failed - len(failure.results)

    if not any(f.results for f in failures):
        return failures[0]
    nearest = min(reversed(failures), key=distance)
    equal = (f for f in failures if f.kind == nearest.kind == "equals")
    return next((f for f in equal if distance(f) == distance(nearest)), nearest)
