"""Counts of kernels and ATen calls of the programs that computed a session's results."""

from __future__ import annotations

from collections.abc import Iterable

from engine.records.counts import aten_calls_of, unique_kernels
from engine.records.session import CompilationRecord, Session
from notebook_ext.views.linked.row_links import CPU, for_target


def ran_on_cpu(session: Session) -> bool:
    """Return True if kernels of this CPU computed results."""
    return any(c.cpu_kernels for c in session.compilations)


def program_counts(session: Session, compilations: Iterable[CompilationRecord]) -> tuple[int, int]:
    """Count the kernels and ATen calls of the programs that ran, on this CPU if one did."""
    counted = [_cpu_counts(c) if ran_on_cpu(session) else _counts(c) for c in compilations]
    return sum(kernels for kernels, _ in counted), sum(calls for _, calls in counted)


def _counts(compilation: CompilationRecord) -> tuple[int, int]:
    return len(unique_kernels(compilation)), len(aten_calls_of(compilation))


def _cpu_counts(compilation: CompilationRecord) -> tuple[int, int]:
    if compilation.cpu_kernels:
        return _counts(for_target(compilation, CPU))
    # Without a kernel for the CPU, ATen ran each operator, also those that kernels for a GPU fuse.
    fused = {node for k in compilation.kernels for node in (*k.fused_nodes, *(n for x in k.launches for n in x.nodes))}
    return 0, len(aten_calls_of(compilation)) + len(fused)
