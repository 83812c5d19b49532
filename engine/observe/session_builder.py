"""Session builder: adds the events of torch's structured trace to a Session, one by one.

It assumes no fixed set or order of events.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from engine.observe import event_names
from engine.observe.compilation_inputs import CompilationInputs
from engine.observe.frame_registry import CallStack, FrameRegistry
from engine.observe.json_values import as_int, as_list, as_number, as_object, as_text
from engine.observe.lazy_records import LazyArtifact, LazyGraph, LazyGuards
from engine.observe.parse_aot_metadata import parse_aot_metadata
from engine.observe.parse_messages import (
    UNSUPPORTED_ERROR,
    PathResolver,
    as_fullgraph_error,
    fullgraph_report,
    parse_break,
    parse_recompile_reasons,
    parse_timings,
)
from engine.observe.parse_output_code import parse_kernels, parse_lowering, with_fused_nodes
from engine.observe.source_files import SourceFiles, strip_notebook_frames
from engine.observe.symbol_history import SymbolHistory
from engine.observe.trace_events import TraceEvent, UnnamedPrograms, frame_id_of
from engine.observe.trace_files import InMemoryPayload
from engine.records.bytecode import SourceFile, Span
from engine.records.guards import GuardFailure, GuardsRecord
from engine.records.lowering import LoweringRecord
from engine.records.runtime import CallRecord, DiskCacheRecord, SkippedRecord, StageFailure
from engine.records.session import CompilationRecord, Session
from engine.records.trace import BreakRecord, TraceRecord

_GRAPH_ORDER = {
    kind.stage: kind.order for kind in (*event_names.GRAPH_EVENTS.values(), *event_names.BACKWARD_GRAPH_KINDS.values())
}
_CODE_NOT_TRACED = frozenset(("Unsupported", "SkipFrame", "RecompileLimitExceeded", "FailOnRecompileLimitHit"))
"""Errors by which Dynamo leaves a frame to Python: no failure of torch."""
_KEY = re.compile(r'"key": ?"([^"]{1,200})"')
_BYPASS = re.compile(r'"cache_bypass_reason": ?"((?:[^"\\]|\\.){1,500})"')
_ERROR_LINE = re.compile(
    r"^[A-Za-z_][\w.]*(?:Error|Exception|Unsupported|Failed|Interrupt|Warning|Exit)\w*: .*$", re.MULTILINE
)
_FRAME_LINE = re.compile(
    r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d{1,7}), in (?P<name>.+)$(?:\n +(?!File ")(?P<code>\S.*))?',
    re.MULTILINE,
)
"""A frame of a traceback, and its line of code if it has one."""


GuardFailureLookup = Callable[[str, PathResolver, Callable[[str], GuardsRecord | None]], dict[str, GuardFailure]]

_EXPLICIT_BREAK_KIND = "call-to-torch-dynamo-graph-break"
_TORCH_BREAK = BreakRecord(
    _EXPLICIT_BREAK_KIND,
    "graph_break() in torch's own code",
    "torch calls torch._dynamo.graph_break() below this line",
    "The break is part of torch, as before each step of an optimizer. Nothing in your code causes it.",
)
"""Texts of a break that torch's own code asks for."""


class SessionBuilder:
    """Adds the events of one process to ``session``.

    ``torch_dir``: torch's folder, whose files are not user code. ``names``: looks up interned file names.
    ``epoch``: wall clock time of the session's start (0: start of the first compilation). ``prefix`` and
    ``suffix``: added to ids and frame names if the session has several processes. ``live_guard_failures``:
    evaluates the live guards while torch reports a recompile.
    """

    def __init__(
        self,
        session: Session,
        *,
        library: str,
        names: Callable[[int], str],
        read_file: Callable[[str], SourceFile],
        epoch: float = 0.0,
        prefix: str = "",
        suffix: str = "",
        refused_now: GuardFailureLookup | None = None,
    ) -> None:
        self.session = session
        self.sources = SourceFiles(library, read_file, session.add_file)
        self.unknown_events: Counter[str] = Counter()
        """Counts of unknown event names."""
        self._intern_lookup = names
        self.prefix = prefix
        self._live_guard_failures = refused_now
        self._epoch = epoch
        self._frames = FrameRegistry(session, self.sources, suffix)
        self._symbols = SymbolHistory(self._stack_of)
        self._guard_failures: dict[str, tuple[GuardFailure, ...]] = {}
        self._fullgraph_errors: set[str] = set()
        """Compilations whose graph break torch raised to the caller."""
        self._pending_callers: dict[str, Span | None] = {}
        """Call site of each compilation in progress."""
        self._inputs = CompilationInputs(session)
        self._programs = UnnamedPrograms()
        self._graph_digests: dict[tuple[str, str], str] = {}
        """(compilation, stage) -> digest and attempt of its graph."""
        self._handlers: dict[str, Callable[[TraceEvent], None]] = {
            "dynamo_start": self._on_start,
            "describe_tensor": self._inputs.on_tensor,
            "describe_source": self._inputs.on_source,
            "dynamo_graph_break_reason": self._on_break,
            "recompile_reasons": self._on_recompile,
            "compiled_autograd_compile_reasons": self._on_autograd_reasons,
            "dynamo_cpp_guards_str": self._on_guards,
            "inductor_output_code": self._on_output_code,
            "aot_forward_graph_fw_metadata": self._on_aot_metadata,
            "inductor_provenance_tracking_node_mappings": self._on_provenance,
            "create_symbol": self._on_symbol,
            "create_unbacked_symbol": self._on_symbol,
            "symbolic_shape_specialization": self._on_symbol,
            "guard_added_fast": self._on_symbol,
            "torch_version": self._on_version,
            **dict.fromkeys(event_names.METRICS_EVENTS, self._on_metrics),
            **dict.fromkeys(event_names.GRAPH_EVENTS, self._on_graph),
            **dict.fromkeys(event_names.FAILURE_EVENTS, self._on_failure),
        }

    def add(self, event: TraceEvent) -> None:
        """Add one event; events without a record class become artifacts.

        Unknown names are also counted.
        """
        name = event.name
        event = self._programs.with_id(event)
        if self.prefix and event.compilation:
            event = replace(event, compilation=self.prefix + event.compilation)
        if event.frame.startswith(self.prefix + event_names.EXPORT_FRAME):
            self._frames.add_named(event.frame, "exported program")
        handler = self._handlers.get(name)
        if handler is not None and (event.compilation or name == "torch_version"):
            handler(event)
        elif name in event_names.IGNORED_EVENTS:
            return
        elif event_names.CACHE_EVENT_PATTERN.match(name) and event.compilation:
            self._on_cache(event)
        else:
            if (
                not event_names.is_text_event(name)
                and name not in self._handlers
                and not event_names.CACHE_EVENT_PATTERN.match(name)
            ):
                self.unknown_events[name] += 1
            self._add_artifact(event)

    def finish(self) -> None:
        """Finish after the last event: record pending calls and inputs, and final frame names."""
        for compilation in self._inputs.pending:
            self._flush_inputs(compilation)
        for compilation in tuple(self._pending_callers):
            self._add_call(compilation, "compiled")
        self._frames.finish()

    # Frames and compilations.

    def _has(self, compilation: str) -> bool:
        try:
            self.session.compilation(compilation)
        except KeyError:
            return False
        return True

    def _get_compilation(self, compilation: str) -> CompilationRecord:
        with contextlib.suppress(KeyError):
            return self.session.compilation(compilation)
        frame, entry = frame_id_of(compilation), compilation.rpartition("/")[2]
        rejections = self._guard_failures.get(compilation, ())
        cause = (
            "first call"
            if entry == "0"
            else "; ".join(r.sentence for r in rejections) or "no earlier cache entry matched the call"
        )
        record = CompilationRecord(compilation, frame, cause, trace=TraceRecord(), compiler="torch")
        self.session.put_compilation(record)
        return record

    def _update(self, event: TraceEvent, **fields: Any) -> None:
        self.session.put_compilation(replace(self._get_compilation(event.compilation), **fields))

    def _on_start(self, event: TraceEvent) -> None:
        stack = self._stack_of(event.facts.get("stack"))
        is_new = not self._has(event.compilation)
        self._get_compilation(event.compilation)
        if not stack or not is_new:
            return
        self.session.set_stage(f"trace {event.compilation}")
        if event.frame not in self._frames:
            self._frames.add(event.frame, stack)
        self._pending_callers[event.compilation] = next(
            (s for _, s in reversed(stack[:-1]) if self.sources.is_user_file(s.file)), None
        )

    def _add_call(self, compilation: str, outcome: str) -> None:
        """Record the call that triggered a compilation, once its outcome is known."""
        caller = self._pending_callers.pop(compilation, None)
        rejections = self._guard_failures.get(compilation, ())
        entry = compilation if outcome == "compiled" else ""
        inputs = self.session.compilation(compilation).inputs
        asked = tuple(r.entry for r in rejections)
        call = CallRecord(0, frame_id_of(compilation), outcome, entry, caller, inputs, asked, rejections)
        self.session.add_call(call)

    def _stack_of(self, frames: Any) -> CallStack:
        """Return the names and spans of a recorded stack, outermost first; add its user files."""
        frames_of_user: list[tuple[str, Span, str]] = []
        for frame in filter(None, map(as_object, as_list(frames))):
            file, number = frame.get("filename"), as_int(frame.get("line")) or 0
            interned = as_int(file)
            path = str(file) if interned is None else self._intern_lookup(interned)
            frames_of_user.append((str(frame.get("name", "?")), Span(path, number), str(frame.get("loc") or "")))
        user = strip_notebook_frames(tuple(span for _, span, _ in frames_of_user))
        frames_of_user = frames_of_user[len(frames_of_user) - len(user) :]
        for _, span, code in frames_of_user:
            self.sources.add_line(span.file, span.line, code)
        return [(name, span) for name, span, _ in frames_of_user]

    # Inputs of a compilation.

    def _flush_inputs(self, compilation: str) -> None:
        """Store the inputs of a compilation that were received since the last flush."""
        if new_inputs := self._inputs.take(compilation):
            record = self._get_compilation(compilation)
            self.session.put_compilation(replace(record, inputs={**(record.inputs or {}), **new_inputs}))

    # Graphs.

    def _on_graph(self, event: TraceEvent) -> None:
        self._flush_inputs(event.compilation)
        kind = self._graph_kind(event)
        if kind.stage == "autograd":
            self._frames.add_named(event.frame, f"compiled autograd {event.frame.rpartition('!')[2]}")
        if event.payload is None:
            return
        graphs = [g for g in self._get_compilation(event.compilation).graphs if g.stage != kind.stage]
        before = event_names.STAGE_BEFORE_PASSES.get(event.name, "")
        before = (
            event_names.BACKWARD_GRAPH_KINDS[before].stage
            if kind.is_backward and before in event_names.BACKWARD_GRAPH_KINDS
            else before
        )
        if self._graph_digests.get((event.compilation, before), " ").partition(" ")[0] == event.digest != "":
            graphs = [g for g in graphs if g.stage != before]
        else:
            inside = self.sources.add_lines_of_graph(event.text)
            if kind.stage == "fx":
                self._frames.record_inlined(event.frame, [(file, name) for file, _, name in inside])
        self._graph_digests[event.compilation, kind.stage] = f"{event.digest} {event.attempt}"
        graph = LazyGraph(
            f"{kind.stage}:{event.compilation}",
            kind.stage,
            kind.title,
            event.payload,
            kind.id_prefix,
            event.compilation,
        )
        self._update(event, graphs=tuple(sorted([*graphs, graph], key=lambda g: _GRAPH_ORDER[g.stage])))

    def _graph_kind(self, event: TraceEvent) -> event_names.GraphKind:
        """Return the kind of a graph.

        Training runs some stages twice: in one attempt, the second graph is the backward's.
        """
        kind = event_names.GRAPH_EVENTS[event.name]
        if kind.stage not in event_names.BACKWARD_GRAPH_KINDS:
            return kind
        earlier_digest = self._graph_digests.get((event.compilation, kind.stage))
        is_second = earlier_digest is not None and earlier_digest.endswith(f" {event.attempt}")
        head = event.text[:20_000].partition("):\n")[0]
        return event_names.BACKWARD_GRAPH_KINDS[kind.stage] if is_second or "tangents_1" in head else kind

    def _on_guards(self, event: TraceEvent) -> None:
        if event.payload is None:
            return
        self._frames.record_self_type(event.frame, event.text)
        self._update(event, guards=LazyGuards(event.payload, self.sources.resolve_suffix))

    def _on_output_code(self, event: TraceEvent) -> None:
        record = self._get_compilation(event.compilation)
        prefix = "bpost" if record.kernels or record.lowering else "post"
        text, payload = event.text, event.payload
        kernels = parse_kernels(
            text, first=len(record.kernels), payload=payload, prefix=f"{prefix}:{event.compilation}:"
        )
        lowering = parse_lowering(text, payload=payload, before=record.lowering)
        self._update(event, kernels=(*record.kernels, *kernels), lowering=lowering)

    def _on_provenance(self, event: TraceEvent) -> None:
        """Read Inductor's map from C++ kernels to graph nodes, if provenance tracking is on."""
        self._add_artifact(event)
        with contextlib.suppress(ValueError, AttributeError, TypeError):
            kernel_nodes = json.loads(event.text).get("cppCodeToPost") or {}
            record = self._get_compilation(event.compilation)
            nodes = {
                str(k).partition(":")[0]: tuple(f"post:{event.compilation}:{n}" for n in v)
                for k, v in kernel_nodes.items()
            }
            self._update(event, kernels=tuple(with_fused_nodes(k, nodes.get(k.name, ())) for k in record.kernels))

    def _on_aot_metadata(self, event: TraceEvent) -> None:
        self._add_artifact(event)
        if (aot_record := parse_aot_metadata(event.text)) is not None:
            self._update(event, aot=aot_record)

    # Graph breaks, recompiles, symbols, failures.

    def _on_break(self, event: TraceEvent, fullgraph_error: str = "") -> None:
        text = fullgraph_error or event.text
        graph_break = as_fullgraph_error(parse_break(text)) if fullgraph_error else parse_break(text)
        graph_break = replace(graph_break, stack=strip_notebook_frames(graph_break.stack))
        users = [s for s in graph_break.stack if self.sources.is_user_file(s.file)]
        if users and users[-1] != graph_break.stack[-1] and graph_break.kind == _EXPLICIT_BREAK_KIND:
            graph_break = replace(_TORCH_BREAK, span=users[-1], stack=graph_break.stack)
        user, _, _ = text.partition("\nTraceback (most recent call last):")
        frames = list(_FRAME_LINE.finditer(user))
        shown = {span.file for span in graph_break.stack}
        for frame in (f for f in frames if f["file"] in shown):
            self.sources.add_line(frame["file"], int(frame["line"]), frame["code"] or "")
        self._frames.record_break(event.frame, [(f["file"], f["name"]) for f in frames])
        trace = self._get_compilation(event.compilation).trace or TraceRecord()
        self._update(event, trace=replace(trace, breaks=_merge_break(trace.breaks, graph_break)))

    def _on_recompile(self, event: TraceEvent) -> None:
        failures = parse_recompile_reasons(event.text, self.sources.resolve_suffix)
        failures = tuple(replace(r, entry=self.prefix + r.entry) if r.entry else r for r in failures)
        walked = (
            self._live_guard_failures(self.prefix, self.sources.resolve_suffix, self._guards_of)
            if self._live_guard_failures is not None
            else {}
        )
        failures = tuple(
            replace(r, guard=w.guard, results=w.results, fixes=w.fixes) if (w := walked.get(r.entry)) else r
            for r in failures
        )
        self._guard_failures[event.compilation] = failures
        self._set_cause(event, "; ".join(r.sentence for r in failures))

    def _guards_of(self, compilation: str) -> GuardsRecord | None:
        return self.session.compilation(compilation).guards if self._has(compilation) else None

    def _on_autograd_reasons(self, event: TraceEvent) -> None:
        with contextlib.suppress(ValueError):
            if reasons := as_list(json.loads(event.text)):
                self._set_cause(event, "; ".join(map(str, reasons)))

    def _set_cause(self, event: TraceEvent, cause: str) -> None:
        """Set the miss reason, which arrives after the compilation's first event."""
        if cause and self._has(event.compilation):
            self._update(event, cause=cause)

    def _on_symbol(self, event: TraceEvent) -> None:
        if facts := event.facts:
            self._symbols.add(event.compilation, event.kind, facts)
            inside = self._stack_of(facts.get("user_stack"))
            self._frames.record_inlined(event.frame, [(span.file, name) for name, span in inside])

    def _on_failure(self, event: TraceEvent) -> None:
        text = event.text or json.dumps(event.metadata)
        error_lines = _ERROR_LINE.findall(text) or [line for line in text.splitlines() if line.strip()] or [event.name]
        record = self._get_compilation(event.compilation)
        if error_lines[-1].startswith(UNSUPPORTED_ERROR):
            if record.trace is None or not record.trace.breaks:  # only fullgraph=True omits the record of a break
                self._fullgraph_errors.add(event.compilation)
                self._on_break(event, fullgraph_report(text))
            return
        failure = StageFailure(
            event_names.FAILURE_EVENTS[event.name],
            f"{event.name}: {error_lines[-1].strip()[:500]}",
            "torch continued without it",
            text,
        )
        if not any(f.sentence == failure.sentence for f in record.failures):
            self._update(event, failures=(*record.failures, failure))

    def _on_cache(self, event: TraceEvent) -> None:
        match = event_names.CACHE_EVENT_PATTERN.match(event.name)
        if match is None:
            return
        text = event.text
        key, why = _KEY.search(text), _BYPASS.search(text)
        lookup = DiskCacheRecord(
            event_names.CACHE_EVENTS[match["cache"]], match["outcome"], key[1] if key else "", why[1] if why else ""
        )
        record = self._get_compilation(event.compilation)
        if lookup not in record.disk_caches:
            self._update(event, disk_caches=(*record.disk_caches, lookup))
        self._add_artifact(event)

    def _on_version(self, event: TraceEvent) -> None:
        with contextlib.suppress(ValueError, AttributeError):
            self.session.versions.setdefault("torch", str(json.loads(event.text)["pytorch_version"]))

    def _add_artifact(self, event: TraceEvent) -> None:
        """Add the event as an artifact; metadata without text becomes its text."""
        payload = event.payload or InMemoryPayload(json.dumps(event.metadata, indent=1, default=str))
        own = str(event.facts.get("name", "")) if event.kind != "artifact" else ""
        artifact = LazyArtifact(f"{event.name} {own}".strip(), payload)
        if not event.compilation:
            self.session.add_artifact(artifact)
        else:
            record = self._get_compilation(event.compilation)
            self._update(event, artifacts=(*record.artifacts, artifact))

    # End of a compilation.

    def _on_metrics(self, event: TraceEvent) -> None:
        facts = event.facts
        self.session.set_stage("")
        if not facts:
            return
        self._flush_inputs(event.compilation)
        self._add_frame_from_metrics(event, facts)
        self._finish_tracing(event, facts)
        is_forward = event.kind == "compilation_metrics" and facts.get("is_forward") is not False
        start = as_number(facts.get("start_time"))
        if not self._epoch and start is not None:
            self._epoch = float(start)
        if version := as_text(facts.get("pytorch_version")):
            self.session.versions.setdefault("torch", version)
        record = self._get_compilation(event.compilation)
        timings = parse_timings(facts, self._epoch, is_forward=is_forward)
        symbols = self._symbols.records_of(event.compilation)
        restarts = tuple(str(r) for r in facts.get("restart_reasons") or ()) or record.restart_reasons
        if skipped := as_text(facts.get("cudagraph_skip_reason")):
            note = f"Kernels are launched one by one: {skipped}"
            self._update(event, lowering=replace(record.lowering or LoweringRecord(""), launch_mode=note))
        self._update(
            event,
            timings=record.timings + timings,
            observed_symbols=symbols or record.observed_symbols,
            restart_reasons=restarts,
        )
        self._inputs.forget_tensors(event.compilation)

    def _add_frame_from_metrics(self, event: TraceEvent, facts: Mapping[str, Any]) -> None:
        """Register a frame from its metrics if its start event was lost."""
        name = as_text(facts.get("co_name"))
        if event.frame in self._frames or not name:
            return
        span = Span(as_text(facts.get("co_filename"), "?"), as_int(facts.get("co_firstlineno")) or 0)
        self._frames.add(event.frame, [(name, span)])

    def _finish_tracing(self, event: TraceEvent, facts: Mapping[str, Any]) -> None:
        if facts.get("fail_type"):
            self._record_skipped_frame(event, str(facts["fail_type"]), str(facts.get("fail_reason") or ""))
        elif event.compilation in self._pending_callers:
            self._add_call(event.compilation, "compiled" if facts.get("has_guarded_code", True) else "python")

    def _record_skipped_frame(self, event: TraceEvent, kind: str, reason: str) -> None:
        """Record that a frame runs as Python.

        The reason is a graph break without a resume function, the recompile limit, or a failure of torch.
        """
        if event.compilation in self._fullgraph_errors:
            self._pending_callers.pop(event.compilation, None)
            return
        first = next((line.strip() for line in reason.splitlines() if line.strip()), kind)
        record = self._get_compilation(event.compilation)
        is_traced = event.kind == "compilation_metrics"
        if is_traced and record.trace is not None and record.trace.breaks:
            *others, last = record.trace.breaks
            self._update(event, trace=replace(record.trace, breaks=(*others, replace(last, skips_frame=True))))
        elif not is_traced or kind not in _CODE_NOT_TRACED:
            stage = "trace" if is_traced else "aot"
            failure = StageFailure(stage, f"{kind}: {first}", "the frame runs as Python", reason)
            self._update(event, failures=(*record.failures, failure))
        hint, failures = "", self._guard_failures.get(event.compilation)
        if "recompile limit" in first and failures:
            first = f"{first.rstrip('.')}. The last reason was: {failures[0].sentence.rstrip('.')}"
            hint = "Remove this cause, or raise torch._dynamo.config.recompile_limit"
        self.session.add_skipped(SkippedRecord(self._frames.display_name(event.frame), first, hint))
        if is_traced:
            self._add_call(event.compilation, "python")


def _merge_break(breaks: tuple[BreakRecord, ...], new_break: BreakRecord) -> tuple[BreakRecord, ...]:
    """Add a break record; count a break that was already recorded (a restart of tracing)."""
    same = [i for i, b in enumerate(breaks) if replace(b, count=1) == new_break]
    if not same:
        return (*breaks, new_break)
    index = same[0]
    return (*breaks[:index], replace(breaks[index], count=breaks[index].count + 1), *breaks[index + 1 :])
