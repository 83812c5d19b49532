"""One event of torch's structured trace, whichever way it came: its kind, its compilation, its facts and its text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_ENVELOPE = frozenset({
    "frame_id", "frame_compile_id", "attempt", "compiled_autograd_id", "rank", "has_payload", "stack", "thread", "process", "pathname",
    "lineno", "timestamp",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """``kind`` is the one key beside the envelope ("dynamo_start", "artifact", ...), ``facts`` its value, ``text`` the payload.

    ``compilation`` is torch's own "frame/entry" ("0/1"); empty where the event belongs to none.
    """

    kind: str
    compilation: str
    facts: Any
    text: str

    @property
    def frame(self) -> str:
        """The frame's number as text; empty where the event belongs to no compilation."""
        return self.compilation.partition("/")[0]

    @property
    def artifact(self) -> str:
        """The name of an artifact, else an empty string."""
        return str(self.facts.get("name", "")) if self.kind == "artifact" and isinstance(self.facts, Mapping) else ""


def event_of(metadata: Mapping[str, Any], payload: object) -> Event | None:
    """The event in one trace record; None where there is no kind key that we know to read."""
    kinds = [key for key in metadata if key not in _ENVELOPE]
    if len(kinds) != 1:
        return None
    kind = kinds[0]
    frame, entry = metadata.get("frame_id"), metadata.get("frame_compile_id")
    compilation = "" if frame is None or entry is None else f"{frame}/{entry}"
    return Event(kind, compilation, metadata[kind], payload if isinstance(payload, str) else "")
