"""The story of each symbol: where it came from, what was concluded about it, and which line of the user's asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from engine.observe.frames import Stack
from engine.records.bytecode import Span
from engine.records.guards import SymbolEvent, SymbolRecord

_NAME = re.compile(r"\b[su]\d+\b")
MOST_EVENTS = 200
"""Conclusions kept for one symbol."""


class Symbols:
    """Symbols by compilation, from the events that tell of them. ``stack_of`` reads a told stack."""

    def __init__(self, stack_of: Callable[[Any], Stack]) -> None:
        self._stack_of = stack_of
        self._known: dict[str, dict[str, SymbolRecord]] = {}

    def of(self, compilation: str) -> tuple[SymbolRecord, ...]:
        """The symbols of a compilation, in the order in which they were made."""
        return tuple(self._known.get(compilation, {}).values())

    def add(self, compilation: str, kind: str, facts: Mapping[str, Any]) -> None:
        """Add one event; conclusions about a symbol whose making was not told make it known by name."""
        symbols = self._known.setdefault(compilation, {})
        span = self._span(facts)
        if kind in ("create_symbol", "create_unbacked_symbol"):
            name = str(facts.get("symbol"))
            made = SymbolRecord(
                name, str(facts.get("source", "")), str(facts.get("val", "")), str(facts.get("vr", "")), span
            )
            known = symbols.get(name)
            symbols[name] = made if known is None else replace(made, events=known.events)
        elif kind == "symbolic_shape_specialization":
            told = f"= {facts.get('value')}: {facts.get('reason', '')}".rstrip(": ")
            self._conclude(symbols, str(facts.get("symbol")), SymbolEvent("specialised", told, span), facts)
        else:
            text = str(facts.get("expr", ""))
            for name in dict.fromkeys(_NAME.findall(text)):
                self._conclude(symbols, name, SymbolEvent("guard", text, span), facts)

    def _conclude(
        self, symbols: dict[str, SymbolRecord], name: str, event: SymbolEvent, facts: Mapping[str, Any]
    ) -> None:
        sources = facts.get("sources")
        source = str(sources[0]) if isinstance(sources, list) and sources else ""
        known = symbols.get(name) or SymbolRecord(name, source, "", "")
        if event not in known.events and len(known.events) < MOST_EVENTS:
            symbols[name] = replace(known, events=(*known.events, event))

    def _span(self, facts: Mapping[str, Any]) -> Span | None:
        stack = self._stack_of(facts.get("user_stack"))
        return stack[-1][1] if stack else None
