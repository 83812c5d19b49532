"""Folds the events of torch's structured trace into a Session, one event at a time, assuming no fixed set or order of events."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from engine.observe.aot_metadata import read_aot_metadata
from engine.observe.events import Event, frame_of
from engine.observe.frames import Frames, Stack
from engine.observe.messages import Resolve, read_break, read_recompile_reasons, spoken
from engine.observe.output_code import read_kernels, read_lowering, with_nodes
from engine.observe.payloads import Held
from engine.observe.registry import (
    CACHE,
    CACHES,
    FAILURES,
    GRAPHS,
    METRICS,
    OF_BACKWARD,
    QUIET,
    SAME_AS_BEFORE,
    GraphKind,
    is_text,
)  # fmt: skip
from engine.observe.sources import Sources, below_shell
from engine.observe.stored import StoredGraph, StoredGuards, StoredText
from engine.observe.symbols import Symbols
from engine.observe.times import timings_of
from engine.records.bytecode import SourceFile, Span
from engine.records.graph import GraphRecord
from engine.records.guards import GuardsRecord, Rejection
from engine.records.runtime import CacheRecord, CallRecord, Failure, Skipped
from engine.records.session import CompilationRecord, Session
from engine.records.trace import BreakRecord, TraceRecord

_PLACES = {kind.stage: kind.place for kind in (*GRAPHS.values(), *OF_BACKWARD.values())}
_PASSED = re.compile(r"^L\['\w+'\](?:\[[^\]]{1,100}\])*$")
"""An argument, or an item of one; all else that a graph takes (parameters, globals) is the same at every call."""
_KEY = re.compile(r'"key": ?"([^"]{1,200})"')
_BYPASS = re.compile(r'"cache_bypass_reason": ?"((?:[^"\\]|\\.){1,500})"')
_ERROR = re.compile(
    r"^[A-Za-z_][\w.]*(?:Error|Exception|Unsupported|Failed|Interrupt|Warning|Exit)\w*: .*$", re.MULTILINE
)
_FRAME_LINE = re.compile(r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<name>.+)$', re.MULTILINE)


RefusedNow = Callable[[str, Resolve, Callable[[str], GuardsRecord | None]], dict[str, Rejection]]


class Fold:
    """Adds what each event of one process tells to ``session``.

    ``library`` is the folder of torch itself, whose files are no user code; ``names`` looks interned strings up; ``epoch`` is the wall
    clock at the session's start (0: that of the first compilation). ``prefix`` opens the ids of what is told, and ``suffix`` ends
    frames' names, where a session holds several processes. ``refused_now`` looks at the live guards while a recompile is told.
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
        refused_now: RefusedNow | None = None,
    ) -> None:
        self.session = session
        self.sources = Sources(library, read_file, session.add_file)
        self.unknown: Counter[str] = Counter()
        """Names that were not understood, and how often each came."""
        self._file_name = names
        self.prefix = prefix
        self._refused_now = refused_now
        self._epoch = epoch
        self._frames = Frames(session, self.sources, suffix)
        self._symbols = Symbols(self._stack_of)
        self._rejections: dict[str, tuple[Rejection, ...]] = {}
        self._callers: dict[str, Span | None] = {}
        """Compilations under way, and who called them."""
        self._tensors: dict[tuple[str, Any, Any], str] = {}
        self._inputs: dict[str, dict[str, str]] = {}
        self._digests: dict[tuple[str, str], str] = {}
        """(compilation, stage) -> digest and attempt of the graph there."""
        self._handlers: dict[str, Callable[[Event], None]] = {
            "dynamo_start": self._start,
            "describe_tensor": self._tensor,
            "describe_source": self._source,
            "dynamo_graph_break_reason": self._break,
            "recompile_reasons": self._recompile,
            "compiled_autograd_compile_reasons": self._autograd_reasons,
            "dynamo_cpp_guards_str": self._guards,
            "inductor_output_code": self._output_code,
            "aot_forward_graph_fw_metadata": self._aot,
            "inductor_provenance_tracking_node_mappings": self._provenance,
            "create_symbol": self._symbol,
            "create_unbacked_symbol": self._symbol,
            "symbolic_shape_specialization": self._symbol,
            "guard_added_fast": self._symbol,
            "torch_version": self._version,
            **dict.fromkeys(METRICS, self._metrics),
            **dict.fromkeys(GRAPHS, self._graph),
            **dict.fromkeys(FAILURES, self._failure),
        }

    def add(self, event: Event) -> None:
        """Add one event; what has no record of its own is kept as text, and what is not known is counted too."""
        name = event.name
        if self.prefix and event.compilation:
            event = replace(event, compilation=self.prefix + event.compilation)
        handler = self._handlers.get(name)
        if handler is not None and (event.compilation or name == "torch_version"):
            handler(event)
        elif name in QUIET:
            return
        elif CACHE.match(name) and event.compilation:
            self._cache(event)
        else:
            if not is_text(name) and name not in self._handlers and not CACHE.match(name):
                self.unknown[name] += 1
            self._keep_text(event)

    def finish(self) -> None:
        """No more events come: note the calls whose compilation never told its end, and the names that only the whole tells."""
        for compilation in tuple(self._inputs):
            self._flush(compilation)
        for compilation in tuple(self._callers):
            self._called(compilation, "compiled")
        self._frames.finish()

    # Frames and compilations.

    def _has(self, compilation: str) -> bool:
        try:
            self.session.compilation(compilation)
        except KeyError:
            return False
        return True

    def _get(self, compilation: str) -> CompilationRecord:
        with contextlib.suppress(KeyError):
            return self.session.compilation(compilation)
        frame, entry = frame_of(compilation), compilation.rpartition("/")[2]
        rejections = self._rejections.get(compilation, ())
        cause = (
            "first call"
            if entry == "0"
            else "; ".join(r.sentence for r in rejections) or "no earlier entry served the call"
        )
        made = CompilationRecord(compilation, frame, cause, trace=TraceRecord(), subject="torch")
        self.session.put(made)
        return made

    def _change(self, event: Event, **fields: Any) -> None:
        self.session.put(replace(self._get(event.compilation), **fields))

    def _start(self, event: Event) -> None:
        stack = self._stack_of(event.facts.get("stack") if isinstance(event.facts, Mapping) else None)
        is_new = not self._has(event.compilation)
        self._get(event.compilation)
        if not stack or not is_new:
            return
        self.session.set_stage(f"trace {event.compilation}")
        if event.frame not in self._frames:
            self._frames.add(event.frame, stack)
        self._callers[event.compilation] = next(
            (s for _, s in reversed(stack[:-1]) if self.sources.is_user(s.file)), None
        )

    def _called(self, compilation: str, outcome: str) -> None:
        """Note the call that led to a compilation, once all of it is known."""
        caller = self._callers.pop(compilation, None)
        rejections = self._rejections.get(compilation, ())
        entry = compilation if outcome == "compiled" else ""
        inputs = self.session.compilation(compilation).inputs
        asked = tuple(r.entry for r in rejections)
        call = CallRecord(0, frame_of(compilation), outcome, entry, caller, inputs, asked, rejections)
        self.session.add_call(call)

    def _stack_of(self, frames: Any) -> Stack:
        """Names and places of a told stack, outermost first; the files of users are noted."""
        found: Stack = []
        for frame in frames if isinstance(frames, list) else ():
            if not isinstance(frame, Mapping):
                continue
            file, line = frame.get("filename"), frame.get("line")
            path = self._file_name(file) if isinstance(file, int) else str(file)
            number = line if isinstance(line, int) else 0
            found.append((str(frame.get("name", "?")), Span(path, number)))
            self.sources.keep(path, number, str(frame.get("loc") or ""))
        return found

    # What one compilation takes.

    def _tensor(self, event: Event) -> None:
        facts = event.facts
        size = ", ".join(str(s) for s in facts.get("size") or ())
        kind = f"{str(facts.get('dtype')).removeprefix('torch.')}[{size}]"
        self._tensors[event.compilation, facts.get("describer_id"), facts.get("id")] = kind
        device = str(facts.get("device", ""))
        if "cuda" in device and self.session.device == "cpu":
            self.session.device = "cuda"

    def _source(self, event: Event) -> None:
        facts = event.facts
        tensor = self._tensors.get((event.compilation, facts.get("describer_id"), facts.get("id")))
        source = str(facts.get("source"))
        if tensor is not None and _PASSED.match(source):
            self._inputs.setdefault(event.compilation, {})[spoken(source)] = tensor

    def _flush(self, compilation: str) -> None:
        """Give a compilation the inputs that were told since the last time."""
        if told := self._inputs.pop(compilation, None):
            known = self._get(compilation)
            self.session.put(replace(known, inputs={**(known.inputs or {}), **told}))

    # Graphs.

    def _graph(self, event: Event) -> None:
        self._flush(event.compilation)
        kind = self._kind_of(event)
        if kind.stage == "autograd":
            self._frames.add_named(event.frame, f"compiled autograd {event.frame.rpartition('!')[2]}")
        if event.payload is None:
            return
        graphs = [g for g in self._get(event.compilation).graphs if g.stage != kind.stage]
        before = SAME_AS_BEFORE.get(event.name, "")
        before = OF_BACKWARD[before].stage if kind.is_backward and before in OF_BACKWARD else before
        if self._digests.get((event.compilation, before), " ").partition(" ")[0] == event.digest != "":
            graphs = [g for g in graphs if g.stage != before]
        else:
            inside = self.sources.keep_graph(event.text)
            if kind.stage == "fx":
                self._frames.note_inside(event.frame, [(file, name) for file, _, name in inside])
        self._digests[event.compilation, kind.stage] = f"{event.digest} {event.attempt}"
        graph = StoredGraph(
            f"{kind.stage}:{event.compilation}", kind.stage, kind.title, event.payload, kind.prefix, event.compilation
        )
        self._change(event, graphs=tuple(sorted([*graphs, graph], key=_place_of)))

    def _kind_of(self, event: Event) -> GraphKind:
        """The kind of a graph; of one that training passes twice, the second time within one attempt is the backward's."""
        kind = GRAPHS[event.name]
        if kind.stage not in OF_BACKWARD:
            return kind
        known = self._digests.get((event.compilation, kind.stage))
        is_second = known is not None and known.endswith(f" {event.attempt}")
        head = event.text[:20_000].partition("):\n")[0]
        return OF_BACKWARD[kind.stage] if is_second or "tangents_1" in head else kind

    def _guards(self, event: Event) -> None:
        if event.payload is None:
            return
        self._frames.note_guards(event.frame, event.text)
        self._change(event, guards=StoredGuards(event.payload, self.sources.resolve))

    def _output_code(self, event: Event) -> None:
        known = self._get(event.compilation)
        prefix = "bpost" if known.kernels or known.lowering else "post"
        text, payload = event.text, event.payload
        kernels = read_kernels(text, first=len(known.kernels), payload=payload, prefix=f"{prefix}:{event.compilation}:")
        lowering = read_lowering(text, event.compilation, payload=payload, before=known.lowering)
        self._change(event, kernels=(*known.kernels, *kernels), lowering=lowering)

    def _provenance(self, event: Event) -> None:
        """Inductor's own map from C++ kernels to graph nodes, where it was asked to make one."""
        self._keep_text(event)
        with contextlib.suppress(ValueError, AttributeError, TypeError):
            told = json.loads(event.text).get("cppCodeToPost") or {}
            known = self._get(event.compilation)
            nodes = {
                str(k).partition(":")[0]: tuple(f"post:{event.compilation}:{n}" for n in v) for k, v in told.items()
            }
            self._change(event, kernels=tuple(with_nodes(k, nodes.get(k.name, ())) for k in known.kernels))

    def _aot(self, event: Event) -> None:
        self._keep_text(event)
        mode = "training" if "tangents" in event.text else "inference"
        if (told := read_aot_metadata(event.text, mode=mode)) is not None:
            self._change(event, aot=told)

    # Breaks, recompiles, symbols, failures.

    def _break(self, event: Event) -> None:
        text = event.text
        told = read_break(text)
        told = replace(told, stack=below_shell(told.stack))
        for span in told.stack:
            self.sources.keep(span.file)
        user, _, _ = text.partition("\nTraceback (most recent call last):")
        places = [(m["file"], m["name"]) for m in _FRAME_LINE.finditer(user)]
        self._frames.note_inside(event.frame, places)
        self._frames.note_break(event.frame, places)
        trace = self._get(event.compilation).trace or TraceRecord()
        self._change(event, trace=replace(trace, breaks=_with_break(trace.breaks, told)))

    def _recompile(self, event: Event) -> None:
        found = read_recompile_reasons(event.text, self.sources.resolve)
        found = tuple(replace(r, entry=self.prefix + r.entry) if r.entry else r for r in found)
        walked = (
            self._refused_now(self.prefix, self.sources.resolve, self._guards_of)
            if self._refused_now is not None
            else {}
        )
        found = tuple(
            replace(r, guard=w.guard, results=w.results, fixes=w.fixes) if (w := walked.get(r.entry)) else r
            for r in found
        )
        self._rejections[event.compilation] = found
        self._refresh_cause(event, "; ".join(r.sentence for r in found))

    def _guards_of(self, compilation: str) -> GuardsRecord | None:
        return self.session.compilation(compilation).guards if self._has(compilation) else None

    def _autograd_reasons(self, event: Event) -> None:
        with contextlib.suppress(ValueError):
            reasons = json.loads(event.text)
            if isinstance(reasons, list) and reasons:
                self._refresh_cause(event, "; ".join(map(str, reasons)))

    def _refresh_cause(self, event: Event, cause: str) -> None:
        """A reason that came after the compilation's first event."""
        if cause and self._has(event.compilation):
            self._change(event, cause=cause)

    def _symbol(self, event: Event) -> None:
        if isinstance(event.facts, Mapping):
            self._symbols.add(event.compilation, event.kind, event.facts)
            inside = self._stack_of(event.facts.get("user_stack"))
            self._frames.note_inside(event.frame, [(span.file, name) for name, span in inside])

    def _failure(self, event: Event) -> None:
        text = event.text or json.dumps(event.facts)
        found = _ERROR.findall(text) or [line for line in text.splitlines() if line.strip()] or [event.name]
        known = self._get(event.compilation)
        told = Failure(
            FAILURES[event.name], f"{event.name}: {found[-1].strip()[:500]}", "torch went on without it", text
        )
        if not any(f.sentence == told.sentence for f in known.failures):
            self._change(event, failures=(*known.failures, told))

    def _cache(self, event: Event) -> None:
        match = CACHE.match(event.name)
        if match is None:
            return
        text = event.text
        key, why = _KEY.search(text), _BYPASS.search(text)
        told = CacheRecord(CACHES[match["cache"]], match["outcome"], key[1] if key else "", why[1] if why else "")
        known = self._get(event.compilation)
        if told not in known.caches:
            self._change(event, caches=(*known.caches, told))
        self._keep_text(event)

    def _version(self, event: Event) -> None:
        with contextlib.suppress(ValueError, AttributeError):
            self.session.versions.setdefault("torch", str(json.loads(event.text)["pytorch_version"]))

    def _keep_text(self, event: Event) -> None:
        """Keep a text under its name; facts without a text are texts too."""
        facts = event.facts
        payload = event.payload or Held(json.dumps(facts, indent=1, default=str))
        own = str(facts.get("name", "")) if event.kind != "artifact" and isinstance(facts, Mapping) else ""
        told = StoredText(f"{event.name} {own}".strip(), payload)
        if not event.compilation:
            self.session.add_text(told)
        else:
            known = self._get(event.compilation)
            self._change(event, texts=(*known.texts, told))

    # The end of a compilation.

    def _metrics(self, event: Event) -> None:
        facts = event.facts
        self.session.set_stage("")
        if not isinstance(facts, Mapping):
            return
        self._flush(event.compilation)
        self._name_frame(event, facts)
        self._end_of_tracing(event, facts)
        is_forward = event.kind == "compilation_metrics" and facts.get("is_forward") is not False
        start = facts.get("start_time")
        if not self._epoch and isinstance(start, (int, float)):
            self._epoch = float(start)
        known = self._get(event.compilation)
        told = timings_of(facts, self._epoch, is_forward=is_forward)
        symbols = self._symbols.of(event.compilation)
        restarts = tuple(str(r) for r in facts.get("restart_reasons") or ()) or known.restarts
        self._change(event, timings=known.timings + told, symbols=symbols or known.symbols, restarts=restarts)
        for key in [k for k in self._tensors if k[0] == event.compilation]:
            del self._tensors[key]

    def _name_frame(self, event: Event, facts: Mapping[str, Any]) -> None:
        """A frame whose start was lost is known by its metrics."""
        name, file, line = (facts.get(k) for k in ("co_name", "co_filename", "co_firstlineno"))
        if event.frame in self._frames or not isinstance(name, str):
            return
        span = Span(file if isinstance(file, str) else "?", line if isinstance(line, int) else 0)
        self._frames.add(event.frame, [(name, span)])

    def _end_of_tracing(self, event: Event, facts: Mapping[str, Any]) -> None:
        if facts.get("fail_type"):
            self._failed(event, str(facts["fail_type"]), str(facts.get("fail_reason") or ""))
        elif event.compilation in self._callers:
            self._called(event.compilation, "compiled" if facts.get("has_guarded_code", True) else "python")

    def _failed(self, event: Event, kind: str, reason: str) -> None:
        """The frame was left to Python: at a break that could not be resumed, at the recompile limit, or by a failure of torch's."""
        first = next((line.strip() for line in reason.splitlines() if line.strip()), kind)
        known = self._get(event.compilation)
        if event.kind != "compilation_metrics" or not (known.trace is not None and known.trace.breaks):
            stage = "trace" if event.kind == "compilation_metrics" else "aot"
            failure = Failure(stage, f"{kind}: {first}", "the frame runs as Python", reason)
            self._change(event, failures=(*known.failures, failure))
        else:
            *others, last = known.trace.breaks
            self._change(event, trace=replace(known.trace, breaks=(*others, replace(last, skipped=True))))
        self.session.add_skipped(Skipped(self._frames.name(event.frame), first))
        if event.kind == "compilation_metrics":
            self._called(event.compilation, "python")


def _with_break(known: tuple[BreakRecord, ...], told: BreakRecord) -> tuple[BreakRecord, ...]:
    """Each report once; the same one met again (a restart of tracing) is counted."""
    same = [i for i, b in enumerate(known) if replace(b, times=1) == told]
    if not same:
        return (*known, told)
    index = same[0]
    return (*known[:index], replace(known[index], times=known[index].times + 1), *known[index + 1 :])


def _place_of(graph: GraphRecord) -> float:
    return _PLACES[graph.stage]
