"""Compile ids for events that have none: those of torch.export and AOTInductor."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from engine.observe.event_names import EXPORT_EVENTS, EXPORT_FRAME, GRAPH_EVENTS
from engine.observe.trace_events import TraceEvent

_FIRST_EVENTS = ("exported_program", "before_pre_grad_graph", "aot_inference_graph", "inductor_output_code")


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
