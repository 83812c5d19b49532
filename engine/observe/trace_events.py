"""One event of torch's structured trace: its kind, compile id, metadata and text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from engine.observe.event_names import EXPORT_EVENTS, EXPORT_FRAME, GRAPH_EVENTS
from engine.observe.json_values import as_int, as_object, as_text
from engine.observe.trace_files import Payload

_FIRST_EVENTS = ("exported_program", "before_pre_grad_graph", "aot_inference_graph", "inductor_output_code")
_ENVELOPE = frozenset({
    "frame_id", "frame_compile_id", "attempt", "compiled_autograd_id", "rank", "has_payload", "stack", "thread", "process", "pathname",
    "lineno", "timestamp", "severity", "subgraph_name",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """An event of the trace, read live or from a log.

    ``kind`` is the one key besides the envelope ("dynamo_start", "artifact", ...), ``metadata`` its value.
    ``compilation`` is torch's compile id "frame/entry" ("0/1"), prefixed by "!N/" inside graph N of compiled
    autograd; empty if the event belongs to no compilation.
    """

    kind: str
    compilation: str
    metadata: Any
    payload: Payload | None = None
    attempt: int = 0
    digest: str = ""
    """MD5 of the text, by torch; equal texts have equal digests."""

    @property
    def text(self) -> str:
        """The event's text; empty if it has none."""
        return self.payload.text() if self.payload is not None else ""

    @property
    def frame(self) -> str:
        """The frame part of the compile id."""
        return frame_id_of(self.compilation)

    @property
    def artifact_name(self) -> str:
        """The name of an artifact event; empty for other events."""
        return str(self.facts.get("name", "")) if self.kind == "artifact" else ""

    @property
    def facts(self) -> Mapping[str, Any]:
        """The metadata if it is an object; empty otherwise."""
        return as_object(self.metadata)

    @property
    def name(self) -> str:
        """The event's name: the artifact's name, else the kind."""
        return self.artifact_name or self.kind


def frame_id_of(compilation: str) -> str:
    """Return the frame part of a compile id: all but the entry number."""
    return compilation.rpartition("/")[0] or compilation


def parse_event(metadata: Mapping[str, Any], payload: Payload | None) -> TraceEvent | None:
    """Parse a trace record into an event; None if it does not have exactly one kind key."""
    kinds = [key for key in metadata if key not in _ENVELOPE]
    if len(kinds) != 1:
        return None
    kind = kinds[0]
    attempt, digest = as_int(metadata.get("attempt")) or 0, as_text(metadata.get("has_payload"))
    return TraceEvent(kind, parse_compile_id(metadata), metadata[kind], payload, attempt, digest)


def parse_compile_id(metadata: Mapping[str, Any]) -> str:
    """Return the compile id in an envelope; empty if there is none."""
    autograd, frame, entry = (
        as_int(metadata.get(key)) for key in ("compiled_autograd_id", "frame_id", "frame_compile_id")
    )
    inner = "" if frame is None or entry is None else f"{frame}/{entry}"
    if autograd is None:
        return inner
    return f"!{autograd}/{inner}" if inner else f"!{autograd}/0"


@dataclass
class UnnamedPrograms:
    """Gives the events of one program one id; a program ends when its first stage comes again."""

    seen: set[str] = field(default_factory=set)
    count: int = 0

    def with_id(self, event: TraceEvent) -> TraceEvent:
        """Return an event of a program with a compile id; other events as they are."""
        name = event.name
        if event.compilation or (name not in GRAPH_EVENTS and name not in EXPORT_EVENTS):
            return event
        if name in _FIRST_EVENTS and name in self.seen:
            self.count += 1
            self.seen.clear()
        self.seen.add(name)
        return replace(event, compilation=f"{EXPORT_FRAME}{self.count or ''}/0")
