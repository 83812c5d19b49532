"""One event of torch's structured trace, whichever way it came: its kind, its compilation, its facts and its text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.observe.trace_payloads import Payload

_ENVELOPE = frozenset({
    "frame_id", "frame_compile_id", "attempt", "compiled_autograd_id", "rank", "has_payload", "stack", "thread", "process", "pathname",
    "lineno", "timestamp", "severity", "subgraph_name",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """``kind`` is the one key beside the envelope ("dynamo_start", "artifact", ...), ``facts`` its value, ``payload`` its text if it has one.

    ``compilation`` is torch's own "frame/entry" ("0/1"), after "!N/" inside compiled autograd's graph N; empty where the event belongs to none.
    """

    kind: str
    compilation: str
    metadata: Any
    payload: Payload | None = None
    attempt: int = 0
    digest: str = ""
    """torch's MD5 of the text: equal texts have equal ones."""

    @property
    def text(self) -> str:
        """The text; empty where there is none."""
        return self.payload.text() if self.payload is not None else ""

    @property
    def frame(self) -> str:
        """The frame's part of the compilation's id."""
        return frame_id_of(self.compilation)

    @property
    def artifact_name(self) -> str:
        """The name of an artifact, else an empty string."""
        return (
            str(self.metadata.get("name", "")) if self.kind == "artifact" and isinstance(self.metadata, Mapping) else ""
        )

    @property
    def name(self) -> str:
        """What tells events apart: an artifact's name, else the kind."""
        return self.artifact_name or self.kind


def frame_id_of(compilation: str) -> str:
    """The frame's part of a compilation's id: all but the number of its entry."""
    return compilation.rpartition("/")[0] or compilation


def parse_event(metadata: Mapping[str, Any], payload: Payload | None) -> TraceEvent | None:
    """The event in one trace record; None where it has no kind key, or several."""
    kinds = [key for key in metadata if key not in _ENVELOPE]
    if len(kinds) != 1:
        return None
    kind = kinds[0]
    attempt, digest = metadata.get("attempt"), metadata.get("has_payload")
    return TraceEvent(
        kind,
        parse_compile_id(metadata),
        metadata[kind],
        payload,
        attempt if isinstance(attempt, int) else 0,
        digest if isinstance(digest, str) else "",
    )


def parse_compile_id(metadata: Mapping[str, Any]) -> str:
    """The compilation's id in an envelope; empty where it names none."""
    autograd, frame, entry = (
        value if isinstance(value := metadata.get(key), int) else None
        for key in ("compiled_autograd_id", "frame_id", "frame_compile_id")
    )
    inner = "" if frame is None or entry is None else f"{frame}/{entry}"
    if autograd is None:
        return inner
    return f"!{autograd}/{inner}" if inner else f"!{autograd}/0"
