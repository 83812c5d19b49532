"""History of shape symbols: source, guards, specializations, and the user lines of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from engine.observe.frame_registry import CallStack
from engine.observe.json_values import as_list
from engine.records.bytecode import Span
from engine.records.guards import ObservedSymbolEvent, ObservedSymbolRecord

_SYMBOL_NAME = re.compile(r"\b[su]\d+\b")
MAX_EVENTS = 200
"""Maximum number of events per symbol."""


class SymbolHistory:
    """Symbols by compilation, from trace events; ``stack_of`` parses a recorded stack."""

    def __init__(self, stack_of: Callable[[Any], CallStack]) -> None:
        self._stack_of = stack_of
        self._known: dict[str, dict[str, ObservedSymbolRecord]] = {}

    def records_of(self, compilation: str) -> tuple[ObservedSymbolRecord, ...]:
        """Return the symbols of a compilation in order of creation."""
        return tuple(self._known.get(compilation, {}).values())

    def add(self, compilation: str, kind: str, facts: Mapping[str, Any]) -> None:
        """Add one event; a symbol whose creation event is missing is added by name."""
        symbols = self._known.setdefault(compilation, {})
        span = self._span(facts)
        if kind in ("create_symbol", "create_unbacked_symbol"):
            name = str(facts.get("symbol"))
            record = ObservedSymbolRecord(
                name, str(facts.get("source", "")), str(facts.get("val", "")), str(facts.get("vr", "")), span
            )
            earlier = symbols.get(name)
            symbols[name] = record if earlier is None else replace(record, events=earlier.events)
        elif kind == "symbolic_shape_specialization":
            event_text = f"= {facts.get('value')}: {facts.get('reason', '')}".rstrip(": ")
            self._add_event(
                symbols, str(facts.get("symbol")), ObservedSymbolEvent("specialized", event_text, span), facts
            )
        else:
            text = str(facts.get("expr", ""))
            for name in dict.fromkeys(_SYMBOL_NAME.findall(text)):
                self._add_event(symbols, name, ObservedSymbolEvent("guard", text, span), facts)

    def _add_event(
        self, symbols: dict[str, ObservedSymbolRecord], name: str, event: ObservedSymbolEvent, facts: Mapping[str, Any]
    ) -> None:
        source = next((str(s) for s in as_list(facts.get("sources"))), "")
        record = symbols.get(name) or ObservedSymbolRecord(name, source, "", "")
        if event not in record.events and len(record.events) < MAX_EVENTS:
            symbols[name] = replace(record, events=(*record.events, event))

    def _span(self, facts: Mapping[str, Any]) -> Span | None:
        stack = self._stack_of(facts.get("user_stack"))
        return stack[-1][1] if stack else None
