"""Folds the events of torch's structured trace into a Session, one event at a time, assuming no fixed set or order of events."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from engine.ir.files import source_file
from engine.observe.events import Event
from engine.observe.graph_text import read_graph
from engine.observe.messages import read_break, read_guards, read_recompile_reasons
from engine.observe.output_code import read_kernels, read_lowering
from engine.records.bytecode import Span
from engine.records.graph import GraphRecord
from engine.records.guards import Rejection
from engine.records.runtime import CallRecord, Failure, Skipped, Timing
from engine.records.session import CompilationRecord, FrameRecord, Session
from engine.records.trace import BreakRecord, TraceRecord

GRAPHS = {
    "dynamo_output_graph": ("fx", "fx", "FX graph (Dynamo)"),
    "aot_inference_graph": ("aten", "aten", "ATen graph (AOTAutograd, inference)"),
    "aot_forward_graph": ("forward", "aten", "ATen forward graph (AOTAutograd)"),
    "aot_backward_graph": ("backward", "backward", "ATen backward graph (AOTAutograd)"),
    "aot_joint_graph": ("joint", "joint", "Joint graph (AOTAutograd)"),
    "inductor_post_grad_graph": ("decomposed", "post", "Graph after Inductor's own passes"),
}
"""Event or artifact -> (stage, opening of node ids, title)."""

ORDER = tuple(stage for stage, _, _ in GRAPHS.values())
STAGE_TIMES = (
    ("compile", "entire_frame_compile_time_s", ""),
    ("backend", "backend_compile_time_s", "compile"),
    ("inductor", "inductor_compile_time_s", "backend"),
    ("code generation", "code_gen_time_s", "inductor"),
)
_RESUME = re.compile(r"^torch_dynamo_resume_in_(?P<name>.+)_at_(?P<line>\d+)$")


class Fold:
    """Adds what each event tells to ``session``. ``library`` is the folder of torch itself, whose files are no user code."""

    def __init__(self, session: Session, *, library: str, names: Callable[[int], str]) -> None:
        self.session = session
        self._library = library
        self._file_name = names
        self._names = {f.id: f.name for f in session.frames}
        self._rejections: dict[str, tuple[Rejection, ...]] = {}
        self._callers: dict[str, Span | None] = {}
        """Compilations under way, and who called them."""
        self._sources: dict[tuple[str, Any, Any], dict[str, Any]] = {}
        self._files: dict[str, None] = {}
        self._epoch = time.time() - (time.perf_counter() - session.started)
        self._handlers: dict[str, Callable[[Event], None]] = {
            "dynamo_start": self._start,
            "describe_tensor": self._tensor,
            "describe_source": self._source,
            "dynamo_graph_break_reason": self._break,
            "recompile_reasons": self._recompile,
            "dynamo_cpp_guards_str": self._guards,
            "inductor_output_code": self._output_code,
            "compilation_metrics": self._metrics,
            **dict.fromkeys(GRAPHS, self._graph),
        }

    def add(self, event: Event) -> None:
        """Add one event; kinds that tell nothing we show are passed over."""
        handler = self._handlers.get(event.artifact or event.kind)
        if handler is not None and event.compilation:
            handler(event)

    # Frames and compilations.

    def _get(self, event: Event) -> CompilationRecord:
        with contextlib.suppress(KeyError):
            return self.session.compilation(event.compilation)
        entry = event.compilation.partition("/")[2]
        rejections = self._rejections.get(event.compilation, ())
        cause = (
            "first call"
            if entry == "0"
            else "; ".join(r.sentence for r in rejections) or "no earlier entry served the call"
        )
        made = CompilationRecord(event.compilation, event.frame, cause, trace=TraceRecord(), subject="torch")
        self.session.put(made)
        return made

    def _change(self, event: Event, **fields: Any) -> None:
        self.session.put(replace(self._get(event), **fields))

    def _start(self, event: Event) -> None:
        stack = self._stack(event.facts)
        is_new = not any(c.id == event.compilation for c in self.session.compilations)
        self._get(event)
        if not stack or not is_new:
            return
        self.session.set_stage(f"trace {event.compilation}")
        name, span = stack[-1]
        if event.frame not in self._names:
            self.session.add_frame(self._frame(event.frame, name, span, has_caller=len(stack) > 1))
            self._names[event.frame] = name
        self._callers[event.compilation] = next((s for _, s in reversed(stack[:-1]) if self._is_user(s.file)), None)

    def _called(self, compilation: str, outcome: str) -> None:
        """Note the call that led to a compilation, once all of it is known."""
        caller = self._callers.pop(compilation, None)
        rejections = self._rejections.get(compilation, ())
        entry = compilation if outcome == "compiled" else ""
        inputs = self.session.compilation(compilation).inputs
        asked = tuple(r.entry for r in rejections)
        frame = compilation.partition("/")[0]
        self.session.add_call(CallRecord(0, frame, outcome, entry, caller, inputs, asked, rejections))

    def finish(self) -> None:
        """Note the calls whose compilation never told its end."""
        for compilation in tuple(self._callers):
            self._called(compilation, "compiled")

    def _frame(self, id: str, name: str, span: Span, *, has_caller: bool) -> FrameRecord:
        resume = _RESUME.match(name)
        if resume is None:
            role = "callee" if has_caller and self._is_called_from_compiled(span) else "root"
            return FrameRecord(id, name, span.file, span.line, role)
        parent = next((f for f in self.session.frames if f.name == resume["name"] and f.file == span.file), None)
        shown = f"{resume['name']} (from line {resume['line']})"
        return FrameRecord(
            id, shown, span.file, span.line, "resume", parent.id if parent else "", Span(span.file, int(resume["line"]))
        )  # fmt: skip

    def _is_called_from_compiled(self, span: Span) -> bool:
        """Whether a break's stack ended inside this function: then Python called it after a break."""
        breaks = [b for c in self.session.compilations if c.trace for b in c.trace.breaks]
        return any(
            len(b.stack) > 1 and b.span is not None and b.span.file == span.file and b.span.line >= span.line
            for b in breaks
        )

    def _stack(self, facts: Any) -> list[tuple[str, Span]]:
        frames = facts.get("stack") if isinstance(facts, Mapping) else None
        found: list[tuple[str, Span]] = []
        for frame in frames or ():
            file = frame.get("filename")
            path = self._file_name(file) if isinstance(file, int) else str(file)
            found.append((str(frame.get("name", "?")), Span(path, int(frame.get("line", 0)))))
            self._keep(path)
        return found

    # Files.

    def _is_user(self, file: str) -> bool:
        return not file.startswith((self._library, "<"))

    def _keep(self, file: str) -> None:
        """Keep the text of a user's file, once."""
        if file in self._files or not self._is_user(file):
            return
        self._files[file] = None
        source = source_file(file)
        if source.text:
            self.session.add_file(source)

    def _resolve(self, end: str) -> str | None:
        """The user's file whose path ends like this (torch prints only the last characters of long paths); None for torch's own."""
        return next((file for file in self._files if file.endswith(end.removeprefix("..."))), None)

    def _keep_all(self, spans: tuple[Span | None, ...]) -> None:
        for span in spans:
            if span is not None:
                self._keep(span.file)

    # What one compilation tells.

    def _tensor(self, event: Event) -> None:
        facts = event.facts
        self._sources[event.compilation, facts.get("describer_id"), facts.get("id")] = facts

    def _source(self, event: Event) -> None:
        facts = event.facts
        tensor = self._sources.get((event.compilation, facts.get("describer_id"), facts.get("id")))
        if tensor is None:
            return
        inputs = dict(self._get(event).inputs or {})
        size = ", ".join(str(s) for s in tensor.get("size", ()))
        inputs[str(facts.get("source"))] = f"{str(tensor.get('dtype')).removeprefix('torch.')}[{size}]"
        self._change(event, inputs=inputs)

    def _graph(self, event: Event) -> None:
        stage, prefix, title = GRAPHS[event.artifact or event.kind]
        graph = read_graph(event.text, stage, prefix, event.compilation, title)
        self._keep_all(tuple(node.span for node in graph.nodes))
        others = [g for g in self._get(event).graphs if g.stage != stage]
        self._change(event, graphs=tuple(sorted([*others, graph], key=_place_of)))

    def _break(self, event: Event) -> None:
        told = read_break(event.text)
        self._keep_all(told.stack)
        trace = self._get(event).trace or TraceRecord()
        self._change(event, trace=replace(trace, breaks=_with_break(trace.breaks, told)))

    def _recompile(self, event: Event) -> None:
        self._rejections[event.compilation] = read_recompile_reasons(event.text, self._resolve)

    def _guards(self, event: Event) -> None:
        self._change(event, guards=read_guards(event.text, self._resolve))

    def _output_code(self, event: Event) -> None:
        known = self._get(event).kernels
        kernels = read_kernels(event.text, first=len(known))
        self._change(event, kernels=(*known, *kernels), lowering=read_lowering(event.text, event.compilation))

    def _metrics(self, event: Event) -> None:
        facts = event.facts
        self.session.set_stage("")
        if not isinstance(facts, Mapping):
            return
        if facts.get("fail_type"):
            self._failed(event, str(facts["fail_type"]), str(facts.get("fail_reason") or ""))
        elif event.compilation in self._callers:
            self._called(event.compilation, "compiled" if facts.get("has_guarded_code", True) else "python")
        start = float(facts.get("start_time") or self._epoch) - self._epoch
        told = tuple(
            Timing(stage, start, float(facts[key]), parent)
            for stage, key, parent in STAGE_TIMES
            if facts.get(key) is not None
        )
        known = self._get(event).timings
        self._change(event, timings=known + (told if facts.get("is_forward", True) else _renamed(told)))

    def _failed(self, event: Event, kind: str, reason: str) -> None:
        """The frame was left to Python: at a break that could not be resumed, at the recompile limit, or by a failure of torch's."""
        first = next((line.strip() for line in reason.splitlines() if line.strip()), kind)
        known = self._get(event)
        if known.trace is not None and known.trace.breaks:
            *others, last = known.trace.breaks
            self._change(event, trace=replace(known.trace, breaks=(*others, replace(last, skipped=True))))
        else:
            failure = Failure("trace", f"{kind}: {first}", "the frame runs as Python", reason)
            self._change(event, failures=(*known.failures, failure))
        frame = next((f for f in self.session.frames if f.id == event.frame), None)
        self.session.add_skipped(Skipped(frame.name if frame else f"frame {event.frame}", first))
        self._called(event.compilation, "python")


def _with_break(known: tuple[BreakRecord, ...], told: BreakRecord) -> tuple[BreakRecord, ...]:
    """Each report once; the same one met again (a restart of tracing) is counted."""
    same = [i for i, b in enumerate(known) if replace(b, times=1) == told]
    if not same:
        return (*known, told)
    index = same[0]
    return (*known[:index], replace(known[index], times=known[index].times + 1), *known[index + 1 :])


def _renamed(timings: tuple[Timing, ...]) -> tuple[Timing, ...]:
    """Times of a backward that was compiled later, under names of their own."""
    return tuple(
        replace(t, stage=f"backward {t.stage}", parent=f"backward {t.parent}" if t.parent else "") for t in timings
    )


def _place_of(graph: GraphRecord) -> int:
    return ORDER.index(graph.stage)
