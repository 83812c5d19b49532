"""Measure the cost of each guard of a session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from engine.records.session import CompilationRecord, Session
from engine.runtime.dispatch.recorded_arguments import ValueUnavailable, make_argument, recorded_frame, resolve_argument


def measure_guards(session: Session) -> int:
    """Measure each guard of a live session's entries on new tensors of the recorded shapes.

    The guard records then have the cost. Returns the number of entries measured; entries whose arguments are no longer
    available are skipped.
    """
    measured = 0
    for compilation in session.compilations:
        recorded = recorded_frame(session, compilation.frame)
        dispatch = None if recorded is None else recorded.dispatcher_state()
        call = next((c for c in recorded.calls if c.entry == compilation.id), None) if recorded else None
        entry = next((e for e in dispatch.entries if e.id == compilation.id), None) if dispatch else None
        if dispatch is None or call is None or entry is None or compilation.guards is None:
            continue
        try:
            arguments = {n: make_argument(resolve_argument(v)) for n, v in call.arguments.items()}
        except ValueUnavailable:
            continue
        costs = dispatch.compiler.guard_queries.costs(entry, dispatch.function.__closure__ or (), arguments)
        session.update_compilation(compilation.id, _with_costs(costs))
        measured += 1
    return measured


def _with_costs(costs: tuple[float | None, ...]) -> Callable[[CompilationRecord], CompilationRecord]:
    def change(compilation: CompilationRecord) -> CompilationRecord:
        assert compilation.guards is not None
        guard_records = tuple(replace(g, cost_ns=c) for g, c in zip(compilation.guards.guards, costs, strict=True))
        return replace(compilation, guards=replace(compilation.guards, guards=guard_records))

    return change
