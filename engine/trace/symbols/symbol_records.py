"""Record the sources, guards and specialization of each symbol."""

from __future__ import annotations

from typing import Any

from engine.graph.fake_tensors.recording_shape_env import RecordingShapeEnv
from engine.ir.guards.base import NO_CAUSE
from engine.ir.guards.sympy_printer import relation_display
from engine.ir.sources.base import Source
from engine.records.trace import SymbolAssumption, TracedSymbolRecord
from engine.trace.annotations import Tracer
from engine.trace.symbols.shape_guards import symbol_bounds
from engine.trace.symbols.symbol_locations import location_of, location_text


def symbol_records(tx: Tracer) -> tuple[TracedSymbolRecord, ...]:
    """Return a record of each symbolic size and number, with the lines of its assumptions."""
    env = tx.symbols.shape_env
    records = []
    for symbol, sources in env.var_to_sources.items():
        origins = [location for s in sources if (location := location_of(s)) is not None]
        if not origins or not symbol.is_Symbol:
            continue
        became = env.replace(symbol)
        low, high = symbol_bounds(env, symbol)
        relations = [_assumption(env, g.expr) for g in env.guards if symbol in g.expr.free_symbols]
        specialized = env.specialization_causes.get(symbol) if became != symbol else None
        specialization = None
        if specialized is not None:
            specialization = SymbolAssumption(f"{symbol.name} == {became}", specialized.reason, specialized.span)
        records.append(
            TracedSymbolRecord(
                symbol.name,
                tuple(dict.fromkeys(location_text(*origin) for origin in origins)),
                str(env.backed_var_to_val.get(symbol, "")),
                _symbol_reason(tx, symbol, origins),
                low,
                high,
                tuple(dict.fromkeys(relations)),
                "" if became == symbol else str(became),
                specialization,
            )
        )
    return tuple(records)


def _assumption(env: RecordingShapeEnv, relation: Any) -> SymbolAssumption:
    cause = env.guard_causes.get(relation, NO_CAUSE)
    return SymbolAssumption(relation_display(relation), cause.reason, cause.span)


def _symbol_reason(tx: Tracer, symbol: Any, locations: list[tuple[Source, int]]) -> str:
    reasons = [tx.symbols.dynamic_size_reasons.get(of, {}).get(dim, "") for of, dim in locations]
    return tx.symbols.symbol_reasons.get(symbol) or next(
        (f for f in reasons if f), "it equals another size that is a symbol"
    )
