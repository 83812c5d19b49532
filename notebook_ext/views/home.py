"""Home view: what happened, and what to do: findings ranked by what their fixes save."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from engine.interrupts.weak_tables import WeakTable
from engine.ir.user_code_files import is_installed_file
from engine.records.bytecode import Span
from engine.records.counts import (
    RootGroup,
    breaks_and_errors_of,
    breaks_of,
    changed_value,
    compile_seconds,
    counts,
    errors_of,
    failed_guards,
    frames_resumed_after,
    graph_count,
    groups,
    has_graph,
    nearest_guard_failure,
    nodes_by_id,
    recompiles_of,
    saved_compilations,
    unique_kernels,
)
from engine.records.findings import find_problems, useful_fixes
from engine.records.format_amounts import format_bytes, format_seconds
from engine.records.guards import NO_FIX, Fix, GuardFailure, GuardRecord
from engine.records.lowering import FusionDecision
from engine.records.runtime import CallRecord, call_numbers
from engine.records.scripts.repro_script import parameters_at
from engine.records.session import CompilationRecord, FrameRecord, Session
from engine.records.trace import BreakRecord
from notebook_ext.views import source_lines
from notebook_ext.views.breaks import caret_lines
from notebook_ext.views.cell_edits import (
    CellEdit,
    CellText,
    CellTree,
    advice,
    argument_edit,
    break_edit,
    cell_errors,
    cell_texts,
    combine,
    diff_rows,
    edit_id,
    is_valid,
)
from notebook_ext.views.compilations import program_counts, ran_on_cpu
from notebook_ext.views.entry_signature import entry_signature
from notebook_ext.views.format_text import EQUALITY_KINDS, is_stack_value, one_line, pluralize, sanitize, source_name
from notebook_ext.views.plan import plan_figures, plans
from notebook_ext.views.summary import guard_failure_text, summary

MAX_COMPILED = 40
"""Maximum number of compiled functions in the table."""
MAX_FINDINGS = 12
"""Maximum number of findings in the list; the rest is counted."""
_SHOWN_WITH_EDITS = ("graph-break", "recompiles")
"""Kinds of problems that this view shows with edits of the cell."""
_FACTS = ("cache-miss", "cache-bypass")
"""Kinds of advice that concern later processes only."""
_URGENCY = {"error": 0, "warning": 4, "advice": 5}
NO_ACTION = 8
"""Urgency from which on a finding is information that needs no action."""
MIN_TRAFFIC = 1_000_000
"""Minimum bytes between kernels for which the traffic is listed."""
DYNAMIC_OPTION = "--dynamic"
_SIZE_KINDS = ("shape", "tensor size", "size")
_TENSOR_KINDS = ("type", "dtype", "device", "ndim", "requires_grad", "shape", "stride")
"""Kinds of guards that are named beside their value."""
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
_ALL_CALLS = "torch.tensor("
"""A fix with this call is applied to every call, so that all arguments have one type."""


@dataclass(frozen=True)
class Replayed:
    """Result of replaying a cell with an edit: one line, and True if the edit helps."""

    text: str
    helps: bool


replayed_edits: WeakTable[Session, dict[str, Replayed]] = WeakTable()
"""Results of replays by session and id of the edit."""


@dataclass(frozen=True)
class Finding:
    """Something that costs compiles, graphs, time or memory, or a wrong result, with its fix.

    ``urgency`` is 0 for a wrong result and grows; findings of one urgency are ordered by ``saved``.
    ``target`` is the view that explains it, ``line`` the selection that shows its line.
    """

    title: str
    cause: str
    urgency: int
    saved: float = 0.0
    saves: str = ""
    sign: str = "!"
    place: str = ""
    pointed: str = ""
    line: str = ""
    target: str = ""
    fixes: tuple[tuple[str, str], ...] = ()
    """Text and code of each fix, best first."""
    edit: CellEdit | None = None
    edit_text: str = ""
    tried: tuple[Fix, ...] = field(default=(), repr=False)


def home(session: Session) -> dict[str, Any]:
    """Return the outcome in one sentence, the main figures, and the ranked findings."""
    plan = plans.get(session)
    ranked = findings(session) if plan is None else []
    cell = cell_texts.get(session)
    together = _combined_edit(session, ranked)
    tone = (
        "bad" if any(f.urgency <= 1 for f in ranked) else "warn" if any(f.urgency < NO_ACTION for f in ranked) else "ok"
    )
    return {
        "outcome": outcome(session, ranked),
        "tone": tone if session.compilations or ranked or plan else "warn",
        "figures": _figure_rows(session)
        if plan is None
        else [{"name": n, "value": v, "target": "devices"} for n, v in plan_figures(plan)],
        "findings": [_finding_row(session, f, cell) for f in ranked[:MAX_FINDINGS]],
        "more": max(0, len(ranked) - MAX_FINDINGS),
        "kernel_title": _kernel_title(session),
        "compiled_title": "What was compiled" if _has_graphs(session) else "What was tried",
        "compiles_title": _compiles_title(session),
        "compiled": [_compiled_row(session, g) for g in groups(session)[:MAX_COMPILED]],
        "together": _edit_row(session, together, cell, "All edits of the cell together") if together else None,
    }


def findings(session: Session) -> list[Finding]:
    """Return the findings of a session: wrong results first, then by what the fix saves."""
    unsorted = [
        *_exception_findings(session),
        *_cell_error_findings(session),
        *_break_findings(session),
        *_recompile_findings(session),
        *_other_problems(session),
        *_unfused_traffic(session),
    ]
    return _without_repeated_edits(sorted(unsorted, key=lambda f: (f.urgency, -f.saved)))


def _without_repeated_edits(ranked: list[Finding]) -> list[Finding]:
    """Return the findings; one whose edit an earlier finding has refers to that finding."""
    first: dict[CellEdit, int] = {}
    for number, finding in enumerate(ranked, 1):
        if finding.edit is not None and first.setdefault(finding.edit, number) != number:
            text = f"The edit of finding {first[finding.edit]} fixes this, too."
            ranked[number - 1] = replace(finding, edit=None, edit_text="", fixes=((text, ""),))
    return ranked


def edited_cell(session: Session, wanted: str) -> CellText | None:
    """Return the cell with the edit of this id; None if the session has no such edit."""
    cell = cell_texts.get(session)
    if cell is None:
        return None
    ranked = findings(session)
    for edit in (*(f.edit for f in ranked), _combined_edit(session, ranked)):
        if edit is not None and edit_id(cell, edit) == wanted:
            return edit.apply(cell)
    return None


def _combined_edit(session: Session, ranked: Iterable[Finding]) -> CellEdit | None:
    """Return all edits as one, without those that did not help; None if at most one is left."""
    cell = cell_texts.get(session)
    if cell is None:
        return None
    results = replayed_edits.get(session, {})
    edits = {edit_id(cell, f.edit): f.edit for f in ranked if f.edit is not None}
    useful = [e for id, e in edits.items() if id not in results or results[id].helps]
    return combine(useful) if len(useful) > 1 else None


def outcome(session: Session, ranked: Iterable[Finding]) -> str:
    """Return one sentence: graphs, graph breaks, recompiles, and what went wrong."""
    if not _has_graphs(session):
        return summary(session, timed=False).text.split("\n")[0].rstrip(".") + "."
    compiled = groups(session)
    by = "torch.compile" if session.compiler == "torch" else ""
    number = counts(session)
    names = [source_lines.frame_name(session, g.root.id, 50) for g in compiled]
    subject = (
        names[0] if len(names) == 1 else f"{names[0]} and {names[1]}" if len(names) == 2 else f"{len(names)} functions"
    )
    whole = f"{pluralize(number.graphs, 'graph')}"
    verb = "were" if len(names) > 1 else "was"
    text = f"{subject} {verb} compiled{f' by {by}' if by else ''} into {whole}"
    said = [pluralize(n, w) for n, w in ((number.breaks, "graph break"), (number.recompiles, "recompile")) if n]
    text += (
        f", with {' and '.join(said)}" if said else "" if number.errors else ", with no graph break and no recompile"
    )
    if number.errors:
        return f"{text}; then it raised an exception."
    if (error := cell_errors.get(session)) is not None:
        return f"{text}; then the cell raised {error.kind}."
    wrong = next((f.title for f in ranked if not f.urgency), "")
    if wrong:
        return f"{text}; {wrong}."
    return text + (": nothing to do." if not said and all(f.urgency >= NO_ACTION for f in ranked) else ".")


# Figures.


def _figure_rows(session: Session) -> list[dict[str, str]]:
    number = counts(session)
    rows = [
        ("Graphs", f"{number.graphs:,}", "graph"),
        ("Graph breaks", f"{number.breaks:,}", "breaks"),
        (_compiles_title(session), f"{number.compiles:,}", "compilations"),
        ("Recompiles", f"{number.recompiles:,}", "recompiles"),
    ]
    kernels, calls = program_counts(session, session.compilations)
    if ran_on_cpu(session):
        rows += [(_kernel_title(session), f"{kernels:,}", "kernels|cpu"), ("ATen calls", f"{calls:,}", "kernels|cpu")]
        rows.append((f"Kernels for {one_line(_target_of(session), 20)}", f"{number.kernels:,}", "kernels"))
    else:
        rows.append((_kernel_title(session), f"{kernels:,}", "kernels"))
        if calls or not _is_only_compiled(session):  # a program that did not run made no calls: do not show 0
            rows.append(("ATen calls", f"{calls:,}", "kernels"))
    roots = {f.id for f in session.frames if not f.parent}
    calls_of_roots = sum(c.frame in roots for c in session.calls) + session.calls_dropped
    rows.append(("Calls", f"{calls_of_roots:,}", "recompiles"))
    if session.seconds:
        rows.append(("Total time", format_seconds(session.seconds), "timings"))
    return [{"name": n, "value": v, "target": t} for n, v, t in rows]


def _has_graphs(session: Session) -> bool:
    return any(has_graph(c) for c in session.compilations)


def _compiles_title(session: Session) -> str:
    """Return the name of the count of compilations; without a graph nothing was compiled."""
    return "Compiles" if _has_graphs(session) else "Attempts"


def _is_only_compiled(session: Session) -> bool:
    """Return True if kernels were compiled for a target that did not run here."""
    has_kernels = any(unique_kernels(c) for c in session.compilations)
    return has_kernels and session.compiler != "torch" and not session.device.startswith(("cuda", "hip"))


def _kernel_title(session: Session) -> str:
    if ran_on_cpu(session):
        return "CPU kernels"
    return f"Kernels for {one_line(_target_of(session), 20)}" if _is_only_compiled(session) else "Kernels"


def _target_of(session: Session) -> str:
    return next((c.lowering.target for c in session.compilations if c.lowering and c.lowering.target), session.target)


def _compiled_row(session: Session, group: RootGroup) -> dict[str, Any]:
    """Return the counts of one compiled function with its resume functions."""
    kernels, calls = program_counts(session, group.compilations)
    seconds = sum(map(compile_seconds, group.compilations))
    return {
        "name": source_lines.frame_name(session, group.root.id),
        "called": source_lines.call_place(session, group.compilations[0]),
        "inputs": one_line(entry_signature(session, group.compilations[0]), 100),
        "target": f"linked|{group.compilations[0].id}",
        "calls": sum(c.frame == group.root.id for c in session.calls),
        "graphs": graph_count(group),
        "breaks": len(breaks_of(group.compilations)),
        "compiles": len(group.compilations),
        "kernels": kernels,
        "aten": calls,
        "time": format_seconds(seconds) if seconds else "",
    }


# Findings.


def _exception_findings(session: Session) -> Iterator[Finding]:
    for group in groups(session):
        for compilation, record in errors_of(group.compilations):
            line = source_lines.user_line(session, compilation, record)
            yield _finding_of_break_or_error(
                session,
                compilation,
                record,
                f"{_stopped_function(session, group, record, line)} raises an exception",
                sanitize(record.context or record.title).rstrip(".") + ".",
                line=line,
                library=source_lines.line_name(session, record.span) if record.span != line else "",
                urgency=1,
                sign="✗",
                fixes=(("Correct this line or its inputs: eager execution raises the exception too.", ""),),
            )


def _cell_error_findings(session: Session) -> Iterator[Finding]:
    if (error := cell_errors.get(session)) is not None:
        cell = cell_texts.get(session)
        lines = ["", *cell.body.splitlines()] if cell is not None else [""]
        yield Finding(
            f"The cell raised {error}",
            "It was raised after tracing, by compiled code or by Python. The calls until then are recorded.",
            1,
            sign="✗",
            place=f"line {error.line}" if error.line else "",
            pointed=sanitize(lines[error.line]).strip() if error.line < len(lines) else "",
        )


@dataclass(frozen=True)
class _Break:
    """A graph break with the user's line that it is listed under."""

    group: RootGroup
    compilation: CompilationRecord
    record: BreakRecord
    line: Span | None


def _break_findings(session: Session) -> Iterator[Finding]:
    # A function that is called by Python and inlined, too, breaks two graphs at one place; a `with` statement breaks its line's
    # graph twice, once more if a library function opens the file.
    places: dict[Any, list[_Break]] = {}
    for group in groups(session):
        for compilation, record in breaks_of(group.compilations):
            line = source_lines.user_line(session, compilation, record)
            edit = _break_edit(session, record)
            is_skip = record.skips_frame and line == record.span
            key = (record.kind, is_skip, (line.file, line.line), edit and edit[0]) if line else id(record)
            places.setdefault(key, []).append(_Break(group, compilation, record, line))
    yield from (_finding_of_breaks(session, same_breaks) for same_breaks in places.values())


def _finding_of_breaks(session: Session, same_breaks: list[_Break]) -> Finding:
    """Return one finding for the breaks of one user line."""
    first = min(same_breaks, key=lambda b: b.record.skips_frame)
    record = first.record
    resumed = [c for b in same_breaks for c in _resumed_by(session, b.group, b.compilation, b.record)]
    seconds = sum(map(compile_seconds, resumed))
    edit = _break_edit(session, record)
    name = "runs as Python" if record.skips_frame else "breaks the graph"
    owner = _stopped_function(session, first.group, record, first.line, first.compilation.frame)
    title = sanitize(record.title).rstrip(".")
    saves = [pluralize(len(same_breaks), "graph break")] + ([pluralize(len(resumed), "compile")] if resumed else [])
    if seconds:
        saves.append(format_seconds(seconds))
    has_fix = bool(edit or record.hints)
    library = dict.fromkeys(
        source_lines.line_name(session, b.record.span) for b in same_breaks if b.record.span != b.line
    )
    return _finding_of_break_or_error(
        session,
        first.compilation,
        record,
        f"{owner} {name}: {title if title.startswith('Python') else title[:1].lower() + title[1:]}",
        sanitize(record.explanation).rstrip(".") + ".",
        line=first.line,
        library=", ".join(library),
        urgency=3 if has_fix else NO_ACTION,
        sign="!" if has_fix else "i",
        saved=len(same_breaks) + len(resumed) + min(seconds, 1e3) / 1e3 + (10 if record.skips_frame else 0),
        saves=", ".join(saves) if has_fix else "",
        fixes=tuple((sanitize(h), "") for h in record.hints[1 if edit and session.compiler != "torch" else 0 :]),
        edit=edit[0] if edit else None,
        edit_text=edit[1] if edit else "",
    )


def _resumed_by(
    session: Session, group: RootGroup, compilation: CompilationRecord, record: BreakRecord
) -> list[CompilationRecord]:
    """Return the compilations of the resume functions that a break made."""
    frames = frames_resumed_after((f for f in session.frames if f.parent == compilation.frame), record)
    return [c for c in group.compilations if c.frame in frames]


def _finding_of_break_or_error(
    session: Session,
    compilation: CompilationRecord,
    record: BreakRecord,
    title: str,
    cause: str,
    *,
    line: Span | None,
    library: str,
    **fields: Any,
) -> Finding:
    number = _break_number(session, record)
    return Finding(
        title,
        cause,
        place=source_lines.line_name(session, line) + (f" ({library})" if library else ""),
        pointed=textwrap.dedent(caret_lines(session, line)),
        line=f"linked|{compilation.id}|line={line.line}" if line else "",
        target=f"breaks|{compilation.id}|break={number}",
        **fields,
    )


def _stopped_function(
    session: Session, group: RootGroup, record: BreakRecord, line: Span | None, frame: str = ""
) -> str:
    """Return the function in which a graph stops: the root, a callee, or a resume function."""
    if record.skips_frame and frame not in ("", group.root.id):
        return source_lines.frame_name(session, frame)
    return source_lines.function_of(session, line) or source_lines.frame_name(session, group.root.id)


def _break_number(session: Session, record: BreakRecord) -> int:
    """Return the number of a break in the breaks view, from 1."""
    stops = [r for g in groups(session) for _, r in breaks_and_errors_of(g.compilations)]
    return next((i for i, r in enumerate(stops, 1) if r is record), 1)


@dataclass
class _Cluster:
    """Recompiles of one root for the same reason."""

    group: RootGroup
    failure: GuardFailure
    call: CallRecord
    compilations: list[CompilationRecord] = field(default_factory=list)


def _recompile_findings(session: Session) -> Iterator[Finding]:
    made_by = {c.entry: c for c in session.calls if c.outcome == "compiled" and c.guard_failures}
    for group in groups(session):
        clusters: dict[tuple[str, str, bool], _Cluster] = {}
        for compilation in recompiles_of(session, group):
            call = made_by.get(compilation.id)
            if call is None:
                continue
            failure = nearest_guard_failure(call.guard_failures)
            key = (source_name(failure.source), failure.kind, failure.is_expected)
            if compilation.frame != group.root.id:  # A resume function recompiles for the root's reason.
                is_derived = is_stack_value(failure.source) and failure.kind not in EQUALITY_KINDS
                caused_by = _root_call_of(session, group, compilation)
                nearest_first = sorted(
                    clusters.items(), key=lambda k: all(c.id != caused_by for c in k[1].compilations)
                )
                same = (
                    k
                    for k, c in nearest_first
                    if is_derived or _changed_property(c.failure) == _changed_property(failure)
                )
                key = next(same, key)
            clusters.setdefault(key, _Cluster(group, failure, call)).compilations.append(compilation)
        yield from (_finding_of_cluster(session, c) for c in clusters.values())


def _changed_property(failure: GuardFailure) -> tuple[str, str, str]:
    """Return the changed property with its expected and actual values."""
    return failure.kind, failure.expected, failure.actual


def _finding_of_cluster(session: Session, cluster: _Cluster) -> Finding:
    failure, call, count = cluster.failure, cluster.call, len(cluster.compilations)
    useful = useful_fixes(session, failure, cluster.compilations, lambda s: source_lines.line_name(session, s))
    others = _other_changed_inputs(session, failure)
    is_joint = bool(others) and all(_has_same_fix(failure, g) for g in others)
    also = tuple(dict.fromkeys(g.path[0] for g in others)) if is_joint else ()
    edit, text = _recompile_edit(session, cluster, failure.fixes if is_joint else useful, also)
    if is_joint:
        useful = () if edit else tuple(_for_each_input(f, source_name(failure.source), also) for f in useful)
    saved = _saved_compilations(session, cluster, [g.source for g in others] if is_joint else [])
    seconds = sum(map(compile_seconds, saved))
    is_numbered = session.compiler != "torch"
    needs_none = failure.needs_no_fix(count) or (bool(useful) and all(f.text.startswith(NO_FIX) for f in useful))
    saves_none = not (saved or needs_none or is_stack_value(failure.source))
    changed = _change_sentence(others[0] if others else None, saves_none=saves_none)
    cause = re.sub("^(a|the) (value|loop's) ", lambda m: m[0].capitalize(), sanitize(failure.sentence))
    return Finding(
        f"{source_lines.frame_name(session, cluster.group.root.id)} recompiles: {guard_failure_text(failure)}",
        cause + changed,
        NO_ACTION if needs_none else 3,
        len(saved) + min(seconds, 1e3) / 1e3,
        ""
        if needs_none or not saved
        else f"{pluralize(len(saved), 'compile')}{f', {format_seconds(seconds)}' if seconds else ''}",
        sign="i" if needs_none else "!",
        place=source_lines.failure_place(session, failure),
        pointed=sanitize(source_lines.source_line(session, failure.span)),
        line=f"linked|{failure.entry}|line={failure.span.line}"
        if failure.span and not failure.library_span and "/" in failure.entry
        else "",
        target=f"recompiles|{call.frame}|call={call_numbers(session.calls)[call.index]}",
        fixes=tuple((sanitize(f.text), sanitize(f.code)) for f in useful if not edit or "dynamic=True" not in f.code),
        edit=edit,
        edit_text=text,
        tried=tuple(f for f in useful if f.code) if is_numbered else (),
    )


def _for_each_input(fix: Fix, name: str, also: tuple[str, ...]) -> Fix:
    """Return the fix of a value for others, too; a fix of a dtype is for all already."""
    if name not in fix.code or any(n in fix.text for n in also):
        return fix
    code = "\n".join(fix.code.replace(name, n) for n in (name, *also))
    others = ", ".join(also[:-1]) + " and " * (len(also) > 1) + also[-1]
    return replace(fix, text=f"{fix.text}; the same for {others}", code=code)


def _has_same_fix(failure: GuardFailure, other: GuardRecord) -> bool:
    """Return True if the fix of a guard failure can be made for another value as well."""
    if failure.kind == other.kind == "dtype":
        return other.expected == failure.expected
    is_number = failure.kind == other.kind == "equals" and _NUMBER.fullmatch(other.expected)
    return bool(is_number) and any(_ALL_CALLS in f.code for f in failure.fixes)


def _saved_compilations(session: Session, cluster: _Cluster, also: list[str]) -> list[CompilationRecord]:
    """Return the recompiles that a cluster's fix alone saves, with those of resume functions."""
    changed = changed_value(session, cluster.failure, also)
    frame = session.compilation(cluster.compilations[0].id).frame
    saved = saved_compilations(session, frame, changed)
    ids = {c.id for c in saved}
    rest = (c for c in recompiles_of(session, cluster.group) if c.frame not in (cluster.group.root.id, frame))
    return saved + [c for c in rest if _root_call_of(session, cluster.group, c) in ids]


def _root_call_of(session: Session, group: RootGroup, compilation: CompilationRecord) -> str:
    """Return the entry that a resume function's root compiled in the same call, or ""."""
    last = ""
    for call in session.calls:
        if call.frame == group.root.id:
            last = call.entry if call.outcome == "compiled" else ""
        elif call.entry == compilation.id and call.outcome == "compiled":
            return last
    return ""


def _other_changed_inputs(session: Session, failure: GuardFailure) -> list[GuardRecord]:
    """Return the failed guards that a fix of this failure does not cover."""
    failed = failed_guards(session, failure)
    own = next((g.source for g in failed if g.id == failure.guard), failure.source)
    pairs = enumerate(zip(reversed(own), reversed(failure.source), strict=False))
    same = next((n for n, (a, b) in pairs if a != b), 0)  # the root may have the user's name
    root, named = own[: len(own) - same], failure.source[: len(failure.source) - same]
    changed = changed_value(session, failure)
    return [
        replace(g, path=(source_name(named + g.source.removeprefix(root) if g.source.startswith(root) else g.source),))
        for g in failed
        if not changed.covers(g)
    ]


def _change_sentence(other: GuardRecord | None, *, saves_none: bool) -> str:
    if other is None:
        return ""
    changed = f" {other.path[0]}{f' {other.kind}' if other.kind in _TENSOR_KINDS else ''} changed, too"
    return f"{changed}: a fix of one alone saves no compile." if saves_none else f"{changed}."


def _other_problems(session: Session) -> Iterator[Finding]:
    """Yield the problems that ``engine.doctor`` also reports, in its words."""
    shown = (*_SHOWN_WITH_EDITS, *(["nothing-compiled"] if breaks_and_errors_of(session.compilations) else []))
    for number, problem in enumerate(find_problems(session)):
        if problem.kind in shown:
            continue
        is_fact = problem.severity == "advice" and (not problem.fixes or problem.kind in _FACTS)
        line = f"linked|{problem.compilation}|line={problem.span.line}" if problem.span and problem.compilation else ""
        yield Finding(
            sanitize(problem.title),
            _make_sentence(sanitize(problem.cause)),
            NO_ACTION if is_fact else _URGENCY[problem.severity],
            problem.seconds + (1 - number / 1e4) / 1e6,
            sanitize(problem.gain),
            sign="✗" if problem.severity == "error" else "i" if is_fact else "!",
            place=source_lines.line_name(session, problem.span),
            pointed=sanitize(source_lines.source_line(session, problem.span)),
            line=line,
            target=problem.view,
            fixes=tuple((sanitize(advice(session, f.text)), sanitize(advice(session, f.code))) for f in problem.fixes),
        )


def _make_sentence(text: str) -> str:
    """Return a text as a sentence; a name at its start keeps its case."""
    word = text.partition(" ")[0]
    start = text[:1] if word.endswith(":") or "_" in word else text[:1].upper()
    return start + text[1:] + ("." if text else "")


def _unfused_traffic(session: Session) -> Iterator[Finding]:
    """Yield the memory traffic between kernels that were not fused: a fact without a fix."""
    unfused = [
        (d.bytes_moved, c, d)
        for c in session.compilations
        for lowering in (c.lowering, c.backward_lowering)
        if lowering is not None
        for d in lowering.decisions
        if not d.fused and d.bytes_moved
    ]
    total = sum(moved for moved, _, _ in unfused)
    if total >= MIN_TRAFFIC:
        moved, compilation, decision = max(unfused, key=lambda f: f[0])
        yield Finding(
            f"Kernels that were not fused pass {format_bytes(total)} through memory",
            f"The largest part is {format_bytes(moved)}{_between(compilation, decision)}. {sanitize(decision.reason)}"
            " No fix is known: the reason is in the data flow.",
            NO_ACTION,
            total,
            sign="i",
            target=f"kernels|{compilation.id}",
        )


def _between(compilation: CompilationRecord, decision: FusionDecision) -> str:
    """Return the nodes of a decision: `` from mul to relu``; empty if they are unknown."""
    nodes = nodes_by_id(compilation, (*decision.first, *decision.second))
    ends = [[nodes[id].name for id in ids if id in nodes] for ids in (decision.first, decision.second)]
    return f" from {one_line(ends[0][-1], 60)} to {one_line(ends[1][0], 60)}" if all(ends) else ""


# Edits of the cell.


def _parse_cell(session: Session) -> CellTree | None:
    cell = cell_texts.get(session)
    try:
        return CellTree(cell) if cell is not None else None
    except (SyntaxError, ValueError):
        return None


def _break_edit(session: Session, record: BreakRecord) -> tuple[CellEdit, str] | None:
    tree = _parse_cell(session)
    edit = None if tree is None else break_edit(tree, record.kind, record.span, record.context)
    return edit if tree is not None and edit is not None and is_valid(tree.cell, edit[0]) else None


def _recompile_edit(
    session: Session, cluster: _Cluster, fixes: tuple[Fix, ...], also: tuple[str, ...]
) -> tuple[CellEdit | None, str]:
    """Return the first fix that can be made in the cell, and its text.

    It applies to the arguments ``also``, too.
    """
    tree = _parse_cell(session)
    own = set(cluster.failure.fixes)
    if tree is None or cluster.failure.is_expected or not all(f in own or "\n" in f.code for f in fixes):
        return None, ""
    calls = [c for c in session.calls if c.frame == cluster.call.frame and c.caller is not None]
    compiled = {m.id for m in cluster.compilations}
    failing = [c for c in calls if c.outcome == "compiled" and c.entry in compiled]
    first = [c for c in calls if c.outcome == "compiled" and c.entry == cluster.failure.entry]
    name = source_name(cluster.failure.source).split(".")[0]
    parameters = _argument_positions(session, cluster.call)
    for fix in () if _is_inlined(session, cluster.call.frame) else fixes:
        if fix.code.startswith(("with ", "f = ", "torch.compile(")) or not fix.code or fix not in own:
            continue
        is_assignment = fix.code.startswith(f"{name} = ")
        wanted = calls if _ALL_CALLS in fix.code else failing if is_assignment else [*first, *failing]
        spans = list(dict.fromkeys(c.caller for c in wanted if c.caller is not None))
        codes = {n: re.sub(rf"\b{re.escape(name)}\b", n, fix.code) for n in (name, *also)}
        parts = [argument_edit(tree, spans, parameters, n, code) for n, code in codes.items()]
        edit = combine(e for e in parts if e is not None)
        if all(parts) and edit is not None and is_valid(tree.cell, edit):
            return edit, sanitize(re.sub(rf"\b{re.escape(name)}\b", " and ".join(codes), fix.text, count=1))
    is_size = cluster.failure.kind in _SIZE_KINDS and not any("sizes 0 and 1" in f.text for f in fixes)
    if is_size or any("dynamic=True" in f.code for f in fixes):
        what = "every size" if is_size else f"{name} and every size"
        return CellEdit(options=(DYNAMIC_OPTION,)), f"Make {what} a symbol from the first call."
    return None, ""


def _is_inlined(session: Session, frame: str) -> bool:
    """Return True for what follows a break in an inlined call.

    Its arguments are not those of the cell's call.
    """
    frames = {f.id: f for f in session.frames}
    record = frames.get(frame)
    while record is not None and record.role == "resume" and record.parent in frames:
        parent = frames[record.parent]
        if (parent.file, parent.first_line) != (record.file, record.first_line):
            return True
        record = parent
    return False


def _argument_positions(session: Session, call: CallRecord) -> dict[str, int | None]:
    """Return each argument's position behind ``self``; None if it is passed by name only."""
    frame: FrameRecord | None = next((f for f in session.frames if f.id == call.frame), None)
    text = next((f.text for f in session.files if frame is not None and f.id == frame.file), "")
    signature = None if frame is None else parameters_at(text, frame.first_line)
    if signature is None:
        names, only_by_name = list(call.inputs or {}), []
    else:
        names = [p.arg for p in (*signature.posonlyargs, *signature.args)]
        only_by_name = [p.arg for p in signature.kwonlyargs]
    is_method = frame is not None and ("." in frame.name or is_installed_file(frame.file))
    names = names[1:] if is_method and names[:1] == ["self"] else names
    return {name: position for position, name in enumerate(names)} | dict.fromkeys(only_by_name)


# Rows.


def _finding_row(session: Session, finding: Finding, cell: CellText | None) -> dict[str, Any]:
    tried = [f for f in finding.tried if f.verified or f.unverified_reason]
    edit = None
    if cell is not None and finding.edit is not None:
        edit = _edit_row(session, finding.edit, cell, finding.edit_text)
    return {
        "title": finding.title,
        "cause": finding.cause,
        "sign": finding.sign,
        "saves": "" if edit and edit["result"] and not edit["helps"] else finding.saves,
        "place": finding.place,
        "pointed": finding.pointed,
        "line": finding.line,
        "target": finding.target,
        "fixes": [{"text": text, "code": code} for text, code in finding.fixes],
        "edit": edit,
        "tried": [{"text": sanitize(f.text), "result": sanitize(f.verified or f.unverified_reason)} for f in tried],
    }


def _edit_row(session: Session, edit: CellEdit, cell: CellText | None, text: str) -> dict[str, Any] | None:
    if cell is None:
        return None
    after = edit.apply(cell)
    result = replayed_edits.get(session, {}).get(edit_id(cell, edit))
    return {
        "id": edit_id(cell, edit),
        "text": text,
        "diff": [[sign, sanitize(line)] for sign, line in diff_rows(cell, after)],
        "source": after.source,
        "can_replay": session.compiler != "torch",
        "result": result.text if result else "",
        "helps": bool(result and result.helps),
    }


Replay = Callable[[CellText], Replayed]
"""Runs an edited cell beside the cell as it is and returns the result."""


def replay_edit(session: Session, wanted: str, replay: Replay) -> Replayed | None:
    """Replay the edit of this id and remember the result; None if there is no such edit."""
    edited = edited_cell(session, wanted)
    if edited is None:
        return None
    result = replay(edited)
    replayed_edits.setdefault(session, {})[wanted] = result
    return result
