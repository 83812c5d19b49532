"""Ranked findings of a session: what costs time, memory or correctness, and its fixes.

The explorer's Home tab, ``engine.doctor`` and ``python -m notebook_ext doctor`` show these texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from statistics import median
from typing import Literal

from engine.group_pairs import group_pairs
from engine.records.aot import NodeValuesRecord
from engine.records.base import Record
from engine.records.bytecode import Span
from engine.records.counts import (
    aten_calls_of,
    breaks_and_errors_of,
    breaks_of,
    causing_guard_failure,
    changed_value,
    compile_seconds,
    failed_guards,
    frames_resumed_after,
    groups,
    has_graph,
    nodes_by_id,
    saved_compilations,
    unique_kernels,
)
from engine.records.format_amounts import format_bytes, format_seconds
from engine.records.graph import operator_name
from engine.records.guards import FEW_VALUES, NO_FIX, STORM, Fix, GuardFailure
from engine.records.lowering import AutotuneChoice, LoweringRecord
from engine.records.ranks.collectives import COLLECTIVE_NAMESPACES, recorded_collectives
from engine.records.ranks.groups import divergence_sides, divergence_title, format_ranks
from engine.records.session import Session
from engine.records.session_data import CompilationRecord, FrameRecord
from engine.records.trace import CHANGED_SIZE, BreakRecord, TracedSymbolRecord

LATE_SECONDS = 5.0
"""Seconds that ranks wait for the last one from which on they are a warning."""
Severity = Literal["error", "warning", "advice"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "advice")
"""Most severe first: wrong or not compiled; costs time or memory at each run; advice."""

GUARD_SECONDS = 1e-4
"""Median seconds of guard evaluation per call from which on it is a warning."""
WARM_UP_HITS = 20
"""Number of first hits that do not count: guards learn in them which dicts stay."""
SAVED_BYTES = 64_000_000
"""Bytes saved for backward from which on they are worth a look."""
SPILLED_REGISTERS = 64
"""Number of spilled registers of a kernel from which on they are worth a look."""
_OPERATORS_OF_TORCH = ("aten.", "prims.", "engine.")
_CUSTOM_ADVICE = "To fuse it, register a lowering for it or write it with operators of torch; else leave it"
LAUNCHED_ONE_BY_ONE = "launched one by one"
"""Part of the launch mode of a lowering whose CUDA graph was skipped."""
AUTOTUNE_TOLERANCE = 1.05
"""Ratio of the chosen candidate's time to the best one's from which on a choice is lost."""


_LOCAL = re.compile(r"\bL\['([^']*)'\]")
_ITEMS = re.compile(r"^[\[(](.*)[\])]$")
_MARK = re.compile(r"[\w.]*mark_dynamic")
_SIZE_OF_LOCAL = re.compile(r"([A-Za-z_]\w*)\.shape\[(\d+)\]")


class Finding(Record):
    """One problem: what happened, its cause, the user's line, fixes, and the expected gain.

    ``kind``: stable id ("recompiles"). ``title``, ``cause`` and ``gain`` are sentences without a final period.
    ``count``: how often it occurred. ``seconds``: seconds of the recorded run that a fix saves (0: unknown).
    ``view``: the explorer's tab that shows it, with what to open in it after a ``|`` ("guards|0/0").
    """

    kind: str
    severity: Severity
    title: str
    cause: str = ""
    fixes: tuple[Fix, ...] = ()
    gain: str = ""
    span: Span | None = None
    view: str = ""
    compilation: str = ""
    count: int = 1
    seconds: float = 0.0


def find_problems(session: Session) -> tuple[Finding, ...]:
    """Return the findings of a session, most important first.

    By severity, then by the seconds that a fix saves, then by the number of occurrences.
    """
    findings = dict.fromkeys(finding for rule in RULES for finding in rule(session))
    return tuple(sorted(findings, key=lambda f: (SEVERITIES.index(f.severity), -f.seconds, -f.count)))


def span_text(session: Session, span: Span | None) -> str:
    """Return a finding's place as ``model.py:31``; empty if unknown."""
    if span is None:
        return ""
    name = next((f.name for f in session.files if f.id == span.file), "") or span.file.replace("\\", "/").split("/")[-1]
    return f"{name}:{span.line}"


def _count_text(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _hint(text: str) -> tuple[Fix, ...]:
    return (Fix(_one_line(text)),) if text else ()


# Not compiled, or wrong.


def _nothing_compiled(session: Session) -> Iterator[Finding]:
    if not _is_nothing_compiled(session):
        return
    stops = breaks_and_errors_of(session.compilations)
    none = "no function or module that computes with tensors was called"
    why = next(
        (f"{s.name}: {_one_line(s.reason)}" for s in session.skipped),
        _one_line(stops[0][1].context or stops[0][1].title) if stops else none,
    )
    fixes = _hint(session.skipped[0].hint) if session.skipped else ()
    yield Finding("nothing-compiled", "error", "Nothing was compiled", why, fixes, view="breaks")


def _is_nothing_compiled(session: Session) -> bool:
    has_hits = any(c.outcome == "hit" for c in session.calls) or session.calls_dropped
    return not (any(has_graph(c) for c in session.compilations) or session.backward_calls or has_hits)


def _skipped(session: Session) -> Iterator[Finding]:
    break_titles = {_one_line(b.title) for c in session.compilations if c.trace for b in c.trace.breaks}
    for record in session.skipped[1:] if _is_nothing_compiled(session) else session.skipped:
        if _one_line(record.reason) in break_titles:
            continue
        severity: Severity = "error" if "recompile limit" in record.reason else "warning"
        if record.drives_training:
            severity = "advice"
        frames = {f.id: f for f in session.frames if f.name == record.name}
        calls = sum(c.outcome == "python" and c.frame in frames for c in session.calls)
        span = next((Span(f.file, f.first_line) for f in frames.values()), None)
        gain = f"{_count_text(calls, 'call')} would run compiled" if calls else ""
        if calls and severity == "error" and session.compiler == "torch":  # it records the first such call only
            gain = "this call and all later calls without a cache hit would run compiled"
        verb = "run" if " and " in record.name else "runs"
        yield Finding(
            "not-compiled", severity, f"{record.name} {verb} as Python", _one_line(record.reason),
            _hint(record.hint), gain, span, "breaks", count=max(calls, 1),
        )  # fmt: skip


def _wrong_kernels(session: Session) -> Iterator[Finding]:
    for compilation in session.compilations:
        for kernel in (*compilation.cpu_kernels, *unique_kernels(compilation)):
            if kernel.verify is None or kernel.verify.outcome != "different":
                continue
            error = kernel.verify.max_error
            size = "" if error is None else f": the largest difference is {error:.2g}"
            yield Finding(
                "wrong-kernel", "error", f"Kernel {kernel.name} differs from ATen", f"Verified in {kernel.verify.where}{size}",
                (Fix("Use another backend for this function, and report the kernel", 'engine.compile(f, backend="aot_eager")'),),
                view=f"kernels|{kernel.id}", compilation=compilation.id,
            )  # fmt: skip


def _internal_errors(session: Session) -> Iterator[Finding]:
    owned = [("", f) for f in session.failures] + [(c.id, f) for c in session.compilations for f in c.failures]
    for compilation, failure in owned:
        is_pass = failure.stage == "pass"
        title = "A registered pass was undone" if is_pass else f"Internal error in stage {failure.stage}"
        yield Finding(
            "undone-pass" if is_pass else "internal-error", "warning", f"{title}: {_one_line(failure.fallback)}",
            _one_line(failure.sentence), view="breaks", compilation=compilation,
        )  # fmt: skip


def _graphs_run_as_traced(session: Session) -> Iterator[Finding]:
    names = {f.id: f.name for f in session.frames}
    seen = set()
    for compilation in session.compilations:
        if compilation.aot is not None and (fallback := compilation.aot.fallback) is not None:
            if (compilation.frame, fallback.reason) in seen:
                continue
            seen.add((compilation.frame, fallback.reason))
            span = next((n.span for g in compilation.graphs for n in g.nodes if n.name == fallback.node), None)
            yield Finding(
                "runs-as-traced", "warning", f"The graph of {names[compilation.frame]} runs as traced, without kernels",
                _one_line(fallback.reason), _hint(fallback.hint), "", span, f"aot|{compilation.id}", compilation.id,
            )  # fmt: skip


# Graph breaks and recompiles.


def _graph_breaks(session: Session) -> Iterator[Finding]:
    for group in groups(session):
        for compilation, record in breaks_of(group.compilations):
            runs = _runs_of_break(session, group.frames, record)
            often = f", which ran {_count_text(runs, 'time')}" if runs > 1 else ""
            what = "the function runs as Python" if record.skips_frame else "the graph ends there"
            # What torch calls the context names objects inside Dynamo.
            texts = (record.context, record.explanation)[:: -1 if session.compiler == "torch" else 1]
            cause = next(filter(None, map(_one_line, texts)), "")
            yield Finding(
                "graph-break", "warning", f"Graph break in {group.root.name}{often}: {_one_line(record.title)}",
                f"{cause}; {what}" if cause else what, tuple(fix for h in record.hints for fix in _hint(h)),
                _break_gain(runs, skips_frame=record.skips_frame), record.span, f"breaks|{compilation.id}", compilation.id,
                max(runs, record.count),
            )  # fmt: skip


def _break_gain(runs: int, *, skips_frame: bool) -> str:
    if skips_frame:
        return "the function would be compiled"
    return f"one graph fewer, {_count_text(runs, 'return')} to Python fewer" if runs else "one graph fewer per call"


def _runs_of_break(session: Session, frames: Iterable[FrameRecord], record: BreakRecord) -> int:
    """Count the calls of resume functions that begin after a graph break.

    0 for stock torch.compile: it records the calls that compile only.
    """
    if session.compiler == "torch":
        return 0
    after = frames_resumed_after(frames, record)
    return sum(c.frame in after for c in session.calls)


def _recompiles(session: Session) -> Iterator[Finding]:
    names = {f.id: f for f in session.frames}
    compilations_by_failure: dict[tuple[str, str, str, bool], list[tuple[CompilationRecord, GuardFailure | None]]] = {}
    seen: set[str] = set()
    beyond_limit = {"; ".join(f.sentence for f in c.guard_failures) for c in session.calls if c.outcome == "python"}
    for compilation in session.compilations:
        failure = causing_guard_failure(session, compilation.id)
        is_limit = failure is None and compilation.cause in beyond_limit
        if (compilation.frame in seen or failure is not None) and not is_limit:
            key = (failure.source, failure.kind, failure.is_expected) if failure else (compilation.cause, "", False)
            compilations_by_failure.setdefault((compilation.frame, *key), []).append((compilation, failure))
        seen.add(compilation.frame)
    for (frame, *_), compiled in compilations_by_failure.items():
        first, failure = compiled[0]
        name = names[frame].name if frame in names else f"frame {frame}"
        span = failure.span if failure else None
        saved = _saved_by_fixes(session, frame, failure) if failure else [c for c, _ in compiled]
        saves = 0.0 if failure and failure.needs_no_fix(len(compiled)) else sum(map(compile_seconds, saved))
        yield Finding(
            "recompiles", "warning" if len(compiled) >= STORM else "advice",
            f"{name} was recompiled {f'{len(compiled):,} times for one reason' if len(compiled) > 1 else 'once'}",
            _one_line(failure.sentence if failure else first.cause),
            useful_fixes(session, failure, (c for c, _ in compiled), lambda s: span_text(session, s)) if failure else (),
            f"{_count_text(len(saved), 'compilation')} fewer" if saves else "", span, f"recompiles|{frame}", first.id,
            len(compiled), saves,
        )  # fmt: skip


def _saved_by_fixes(session: Session, frame: str, failure: GuardFailure) -> list[CompilationRecord]:
    dtypes = (g for g in failed_guards(session, failure) if (g.kind, g.expected) == ("dtype", failure.expected))
    return saved_compilations(session, frame, changed_value(session, failure, [g.source for g in dtypes]))


def useful_fixes(
    session: Session,
    failure: GuardFailure,
    compilations: Iterable[CompilationRecord],
    name_place: Callable[[Span | None], str],
) -> tuple[Fix, ...]:
    """Return the fixes of a guard failure that can help.

    If a compilation that it caused made the changed value a symbol and had to specialize it, no mark and no
    tensor can: only the line that needs the value. ``name_place`` names that line. If the symbol of a number was
    enough, so is a symbol from the first call; code that needs a size may not take a tensor. Code that compares the
    number would break the graph with a tensor.
    """
    compilations = tuple(compilations)
    if failure.is_expected:
        return failure.fixes if failure.needs_no_fix(len(compilations)) else tuple(map(_for_many_values, failure.fixes))
    changed_sources = set(_changed_values(failure))
    every = [s for c in compilations for s in (c.trace.symbols if c.trace else ())]
    symbols = [s for s in every if changed_sources.intersection(s.sources)]
    for symbol in symbols:
        if symbol.is_constant and symbol.specialized_by:
            line = _change_line(symbol, name_place(symbol.specialized_by.span))
            return (line, *(f for f in failure.fixes if f.verified))
    enough = tuple(f for f in failure.fixes if f.verified or "dynamic=True" in f.code)
    if enough and symbols and failure.kind == "equals":
        return enough
    limited = next((s for s in symbols if s.assumptions), None)
    if failure.kind == "equals" and limited is not None:
        place = name_place(limited.assumptions[0].span)
        shared = f"{limited.sources[0]} is a symbol in the recompiled code, so later values share one cache entry"
        at = f" ({place})" if place else ""
        return (Fix(f"{NO_FIX}: {shared}. A tensor would break the graph where it is compared{at}."),)
    return joint_fixes(session, failure, compilations)


def joint_fixes(session: Session, failure: GuardFailure, compilations: Iterable[CompilationRecord]) -> tuple[Fix, ...]:
    """Return the fixes of a guard failure, each for all inputs that changed in the same call."""
    compilations = tuple(compilations)
    if failure.kind.endswith("dtype"):
        return _conversions(session, failure, compilations)
    own = set(_changed_values(failure))
    every = [s for c in compilations for s in (c.trace.symbols if c.trace else ())]
    # A resume function has locals that are no inputs of the call.
    inputs = next((c.inputs for c in session.compilations if c.id == failure.entry and c.inputs), None)
    changed = (p for s in every if s.why == CHANGED_SIZE for p in s.sources if p not in own)
    sizes = dict.fromkeys(match for p in changed if (match := _SIZE_OF_LOCAL.fullmatch(p)) is not None)
    others = [match for match in sizes if inputs is None or match[1] in inputs]
    is_symbol = any(own.intersection(s.sources) for s in every)
    return tuple(_with_marks(f, others) for f in failure.fixes) if is_symbol and others else failure.fixes


def _conversions(
    session: Session, failure: GuardFailure, compilations: tuple[CompilationRecord, ...]
) -> tuple[Fix, ...]:
    """Return the fixes of a changed dtype, for all inputs whose dtype changed in the same way."""
    before = next((c.inputs for c in session.compilations if c.id == failure.entry), None) or {}
    after = next((c.inputs for c in compilations), None) or {}
    name = _LOCAL.sub(r"\1", failure.source)
    old, new = f"{failure.expected}[", f"{failure.actual}["
    others = [n for n, t in after.items() if n != name and t.startswith(new) and before.get(n, "").startswith(old)]
    convert = f"Convert {name} "
    names = ", ".join((name, *others[:-1])) + "".join(f" and {o}" for o in others[-1:])
    return tuple(
        replace(f, text=f.text.replace(convert, f"Convert {names} "), code=_for_each(f.code, name, others))
        if f.text.startswith(convert) and not (f.verified or f.unverified_reason)
        else f
        for f in failure.fixes
    )


def _for_each(code: str, name: str, others: list[str]) -> str:
    """Return a line of code, then the same for other names."""
    return "\n".join([code, *(re.sub(rf"\b{name}\b", o, code) for o in others)]) if code else ""


def _for_many_values(fix: Fix) -> Fix:
    text = fix.text.removeprefix(FEW_VALUES)
    return replace(fix, text=text[:1].upper() + text[1:])


def _with_marks(fix: Fix, others: Iterable[re.Match[str]]) -> Fix:
    """Return a fix that marks one size, with the other sizes that changed in the same call."""
    mark = _MARK.match(fix.code)
    if mark is None or fix.verified or fix.unverified_reason:
        return fix
    names = " and ".join(f"dimension {o[2]} of {o[1]}" for o in others)
    code = [fix.code, *(f"{mark[0]}({o[1]}, {o[2]})" for o in others)]
    return replace(fix, text=fix.text.replace(" as dynamic", f" and {names} as dynamic", 1), code="\n".join(code))


def _changed_values(failure: GuardFailure) -> Iterator[str]:
    """Yield the user's names of what changed: ``n``, or sizes of a tensor (``x.shape[0]``)."""
    name = _LOCAL.sub(r"\1", failure.source)
    yield name
    before, after = _ITEMS.match(failure.expected), _ITEMS.match(failure.actual)
    if before and after:
        sizes = zip(before[1].split(","), after[1].split(","), strict=False)
        yield from (f"{name}.shape[{i}]" for i, (a, b) in enumerate(sizes) if a.strip() != b.strip())


def _change_line(symbol: TracedSymbolRecord, line: str) -> Fix:
    at = f" at {line}" if line else ""
    return Fix(
        f"Change what needs the concrete value of {symbol.sources[0]}{at}, or pass fewer values: each one is compiled separately"
    )


def _specialized_sizes(session: Session) -> Iterator[Finding]:
    for compilation in session.compilations:
        for symbol in compilation.trace.symbols if compilation.trace else ():
            if symbol.is_constant and symbol.why == "marked dynamic":
                by = symbol.specialized_by
                yield Finding(
                    "specialized-size", "warning", f"{' = '.join(symbol.sources)} is marked dynamic, but the code works for {symbol.specialized_to} only",
                    _one_line(by.text) if by else "", (Fix("Remove the mark, or the code that compares the size"),),
                    "one cache entry for all sizes", by.span if by else None, f"guards|{compilation.id}", compilation.id,
                )  # fmt: skip


# Calls: guards and caches.


def _guard_latency(session: Session) -> Iterator[Finding]:
    for frame in session.frames:
        calls = [c for c in session.calls if c.frame == frame.id and c.outcome == "hit"]
        if len(calls) < WARM_UP_HITS + STORM:
            continue
        # Other work of the machine makes single calls slow.
        typical = median(c.guard_seconds for c in calls[WARM_UP_HITS:])
        if typical < GUARD_SECONDS:
            continue
        entries = [c for c in session.compilations if c.frame == frame.id and c.guards is not None]
        guards = sum(len(c.guards.guards) for c in entries if c.guards)
        yield Finding(
            "guard-latency", "warning", f"Guards of {frame.name} take {format_seconds(typical)} per call",
            f"{_count_text(guards, 'guard')} in {len(entries):,} {'entry' if len(entries) == 1 else 'entries'}",
            (Fix("Compile one function that contains the loop, so that the guards run once"),),
            "at most this time per call", Span(frame.file, frame.first_line), f"guards|{entries[0].id if entries else ''}",
            count=len(calls), seconds=typical * len(calls),
        )  # fmt: skip


def _disk_caches(session: Session) -> Iterator[Finding]:
    lookups = [(lookup, compilation) for compilation in session.compilations for lookup in compilation.disk_caches]
    bypassed = group_pairs(((lookup.cache, lookup.note), c) for lookup, c in lookups if lookup.outcome == "bypass")
    missed = list({c.id: c for lookup, c in lookups if lookup.outcome == "miss"}.values())
    for (cache, note), compiled in bypassed.items():
        yield Finding(
            "cache-bypass", "advice", f"The {cache} was bypassed for {_count_text(len(compiled), 'compilation')}", _one_line(note),
            gain="later processes would load the result", view="compilations", compilation=compiled[0].id, count=len(compiled),
            seconds=sum(map(compile_seconds, compiled)),
        )  # fmt: skip
    if missed:
        yield Finding(
            "cache-miss", "advice", f"{_count_text(len(missed), 'compilation')} missed a disk cache",
            "the cache holds no result for this graph, its options and this machine",
            (Fix("Keep the cache folder between processes, or copy it to new machines", "TORCHINDUCTOR_CACHE_DIR=FOLDER"),),
            "later processes load the results", view="compilations", compilation=missed[0].id, count=len(missed),
            seconds=sum(map(compile_seconds, missed)),
        )  # fmt: skip


# Kernels and memory.


def _lowerings(session: Session) -> Iterator[tuple[CompilationRecord, LoweringRecord]]:
    for compilation in session.compilations:
        for lowering in (compilation.lowering, compilation.backward_lowering):
            if lowering is not None:
                yield compilation, lowering


def _cuda_graph_skips(session: Session) -> Iterator[Finding]:
    for compilation, lowering in _lowerings(session):
        text = lowering.launch_mode
        if LAUNCHED_ONE_BY_ONE in text:
            yield Finding(
                "cuda-graph-skip", "warning", "Kernels are not launched as a CUDA graph", _one_line(text),
                gain="one launch per call instead of one per kernel", view="kernels", compilation=compilation.id,
                count=max(len(unique_kernels(compilation)), 1),
            )  # fmt: skip


def _slower_autotune_choices(session: Session) -> Iterator[Finding]:
    for compilation, lowering in _lowerings(session):
        for choice in lowering.autotune_choices:
            best = _faster_candidate(choice)
            if best is None:
                continue
            name, gain = best
            yield Finding(
                "autotune-lost", "advice", f"Autotuning chose {choice.chosen}, although {name} was faster", _one_line(choice.reason),
                gain=f"{format_seconds(gain)} per call", view="kernels", compilation=compilation.id, seconds=gain,
            )  # fmt: skip


def _faster_candidate(choice: AutotuneChoice) -> tuple[str, float] | None:
    times = {name: seconds for name, seconds in choice.candidates if seconds is not None}
    chosen = times.get(choice.chosen)
    if chosen is None:
        return None
    name = min(times, key=lambda n: times[n])
    return (name, chosen - times[name]) if chosen > times[name] * AUTOTUNE_TOLERANCE else None


def _missing_lowerings(session: Session) -> Iterator[Finding]:
    nodes_by_reason: dict[tuple[str, str, str], list[tuple[str, str, Span | None]]] = {}
    for compilation in session.compilations:
        calls = [
            c
            for c in aten_calls_of(compilation)
            if not (c.is_library or c.op.partition(".")[0] in COLLECTIVE_NAMESPACES)
        ]
        nodes = nodes_by_id(compilation, [call.node for call in calls])
        for call in calls:
            node = nodes.get(call.node)
            op = operator_name(call.op, node)
            custom = "" if call.op.startswith(_OPERATORS_OF_TORCH) else op
            node_line = (op, compilation.id, node.span if node else None)
            nodes_by_reason.setdefault((custom, call.reason, call.hint), []).append(node_line)
    for (custom, reason, hint), node_lines in nodes_by_reason.items():
        where, advice = ("its own code", _CUSTOM_ADVICE) if custom else ("in ATen", hint)
        _, compilation_id, span = node_lines[0]
        first, *others = dict.fromkeys(op for op, _, _ in node_lines)
        names = (
            f"{first} and {others[0] if len(others) == 1 else f'{len(others)} other operators'}" if others else first
        )
        run, fused = ("run", "are not fused") if others else ("runs", "is not fused")
        yield Finding(
            "aten-fallback", "advice", f"{names} {run} {where} and {fused} with the kernels around", _one_line(reason), _hint(advice),
            "the memory traffic of the operands", span, "kernels", compilation_id, len(node_lines),
        )  # fmt: skip


def _spills(session: Session) -> Iterator[Finding]:
    for compilation in session.compilations:
        for kernel in unique_kernels(compilation):
            for target in kernel.targets:
                spills = target.resources.spills if target.resources else None
                if spills and spills >= SPILLED_REGISTERS and kernel.language == "triton":
                    yield Finding(
                        "register-spills", "advice", f"Kernel {kernel.name} spills {_count_text(spills, 'register')} on {target.target}",
                        "its blocks need more registers than a thread has", view=f"kernels|{kernel.id}",
                        compilation=compilation.id, count=spills,
                    )  # fmt: skip


_INFINITE_ON_PURPOSE = frozenset(("full", "full_like", "scalar_tensor", "where", "masked_fill", "log"))
"""Operators whose infinite results are no surprise: masks, and the logarithm of zero."""


def _values_not_finite(session: Session) -> Iterator[Finding]:
    """Yield the first operator of each call that makes a NaN or leaves the range of its dtype."""
    for compilation in session.compilations:
        values = {v.node: v for passage in compilation.call_values for v in passage.nodes}
        if not values:
            continue
        nodes = nodes_by_id(compilation, values)
        for id, statistics in values.items():
            node = nodes.get(id)
            if node is None or not (statistics.nans or statistics.infinities):
                continue
            before = [values[i] for i in node.inputs if i in values]
            name = node.target.removeprefix("torch.ops.").split(".")[1] if "." in node.target else node.target
            is_first = not any(v.nans or (v.infinities and not statistics.nans) for v in before)
            if not is_first or (not statistics.nans and name in _INFINITE_ON_PURPOSE):
                continue
            what, count = ("NaN", statistics.nans) if statistics.nans else ("infinite", statistics.infinities)
            ranges = [_range_text(values[i]) for i in node.inputs if i in values and values[i].low is not None]
            yield Finding(
                "values-not-finite", "error", f"{node.name} computes the first {what} values: {count:,} of {statistics.count:,}",
                f"it is computed as {_one_line(node.text)}{', of ' if ranges else ''}{' and '.join(ranges[:3])}",
                (Fix("Keep its inputs in the domain of the operator: clamp them, or change the formula"),), span=node.span,
                view=f"graph|{compilation.id}|{_stage_of(compilation, id)}|node={node.name}", compilation=compilation.id, count=count,
            )  # fmt: skip
            break


def _range_text(values: NodeValuesRecord) -> str:
    """Return the range of an operand's finite elements, and how many are infinite."""
    text = f"{values.node.rpartition(':')[2]} from {values.low:.4g} to {values.high:.4g}"
    return f"{text} ({values.infinities:,} infinite)" if values.infinities else text


def _stage_of(compilation: CompilationRecord, node: str) -> str:
    """Return the stage of the last graph that has a node."""
    return next((g.stage for g in reversed(compilation.graphs) if any(n.id == node for n in g.nodes)), "")


def _memory_peak(session: Session) -> Iterator[Finding]:
    with_partition = [c for c in session.compilations if c.aot is not None and c.aot.partition is not None]
    for compilation in with_partition:
        partition = compilation.aot.partition if compilation.aot else None
        if partition is None or partition.saved_bytes < SAVED_BYTES:
            continue
        largest = max(partition.values, key=lambda v: v.bytes if v.action == "saved" else 0, default=None)
        peak = max(partition.forward_peak_bytes, partition.backward_peak_bytes)
        yield Finding(
            "memory-peak", "advice", f"{format_bytes(partition.saved_bytes)} are saved for backward (estimated peak {format_bytes(peak)})",
            f"the largest is {largest.name}: {format_bytes(largest.bytes)}, {_one_line(largest.reason)}" if largest else "",
            (Fix("Recompute a block's activations in the backward", "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"),),
            f"up to {format_bytes(partition.saved_bytes)}", view=f"aot|{compilation.id}", compilation=compilation.id,
        )  # fmt: skip


# Ranks.


def _hidden_redistributions(session: Session) -> Iterator[Finding]:
    collectives = recorded_collectives(session.compilations)
    hidden = group_pairs((c.span, c) for c in collectives if c.is_hidden and c.kind == "all_gather")
    for span, calls in hidden.items():
        read = ", ".join(f"{n.name} is {' '.join(n.placements)}" for n in calls[0].inputs if n.placements)
        yield Finding(
            "hidden-redistribution", "advice", f"DTensor gathers {format_bytes(sum(c.bytes for c in calls))} at a line that asks for no collective",
            _one_line(f"its operator cannot be computed on the placements of its inputs: {read}"), (), "", span, "devices", calls[0].compilation,
            len(calls),
        )  # fmt: skip


_RANK_FIXES = {
    "collective order": "Issue the same collectives in the same order on every rank: move them out of branches on the rank or on data",
    "graph breaks": "Let every rank run the same code: move the break out of the branch on the rank or on data",
    "compile ids": "Give every rank inputs of equal shapes and types, or mark the dimensions that vary as dynamic",
    "tensor metadata": "Give every rank inputs of equal shapes: pad or drop the last batch, or mark the dimension as dynamic",
    "cache outcomes": "Share one compile cache among the ranks, or fill it on each machine before the run",
}


def _diverging_ranks(session: Session) -> Iterator[Finding]:
    if session.ranks is None:
        return
    compilation_ids = {c.id for c in session.compilations}
    for divergence in session.ranks.divergences:
        severity: Severity = "error" if divergence.aspect == "collective order" else "warning"
        cause = _one_line(divergence_sides(divergence))
        yield Finding(
            "rank-divergence", severity, divergence_title(divergence), cause, _hint(_RANK_FIXES.get(divergence.aspect, "")), "",
            divergence.span, "devices", divergence.compilation if divergence.compilation in compilation_ids else "", len(divergence.ranks),
        )  # fmt: skip
    if session.ranks.missing:
        yield Finding("missing-ranks", "warning", f"{format_ranks(session.ranks.missing).capitalize()} left no recording", f"{_count_text(len(session.ranks.missing), 'log')} missing", view="devices")  # fmt: skip
    for problem in session.ranks.problems:
        yield Finding("rank-recordings", "warning", _one_line(problem), view="devices")
    late = max(session.ranks.arrivals, key=lambda a: a.waited, default=None)
    if late is not None and late.waited >= LATE_SECONDS:
        waiting = f" at {late.collectives[0]}" if late.collectives else ""
        yield Finding(
            "late-rank", "warning", f"Rank {late.last} is {format_seconds(late.waited)} late for compile id {late.compilation}, {late.what}",
            f"The other ranks wait for it{waiting}", view="devices", seconds=late.waited,
        )  # fmt: skip


RULES: tuple[Callable[[Session], Iterator[Finding]], ...] = (
    _nothing_compiled,
    _diverging_ranks,
    _hidden_redistributions,
    _skipped,
    _wrong_kernels,
    _values_not_finite,
    _internal_errors,
    _graphs_run_as_traced,
    _graph_breaks,
    _recompiles,
    _specialized_sizes,
    _guard_latency,
    _disk_caches,
    _cuda_graph_skips,
    _slower_autotune_choices,
    _missing_lowerings,
    _spills,
    _memory_peak,
)
"""Rules in the order in which findings of equal weight are shown."""
