"""Queries of dispatch about the guards of a cache entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.guards.explain import explain
from engine.guards.measure_costs import measure_guard_costs
from engine.guards.recompile_reasons import first_guard_failure
from engine.guards.to_records import guards_record
from engine.ir.compiler_protocol import CacheEntry
from engine.ir.sources.base import FrameScope
from engine.records.guards import GuardFailure, GuardResult, GuardsRecord


class EntryGuardQueries:
    """Evaluates, times and describes the guards of one cache entry."""

    def explain(self, entry: CacheEntry, scope: FrameScope) -> tuple[GuardResult, ...]:
        """Evaluate all guards of an entry against one call."""
        return explain(entry.guards, scope)

    def failure(self, entry: CacheEntry, scope: FrameScope) -> GuardFailure | None:
        """Return the guard failure of an entry for a call; None if all guards pass."""
        return first_guard_failure(entry.id, entry.guards, scope, entry.modules)

    def record(self, entry: CacheEntry) -> GuardsRecord:
        """Return an entry's guards as records."""
        return guards_record(entry.guards, entry.check_text)

    def costs(self, entry: CacheEntry, cells: Any, arguments: Mapping[str, Any]) -> tuple[float | None, ...]:
        """Return the cost in nanoseconds of each guard of an entry, for these arguments."""
        return measure_guard_costs(entry.guards, tuple(arguments), cells, tuple(arguments.values()))
