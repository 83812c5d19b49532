"""Counts of kernels and ATen calls of the programs that computed a session's results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from engine.records.counts import aten_calls_of, unique_kernels
from engine.records.lowering import LoweringRecord
from engine.records.session import CompilationRecord, Session
from notebook_ext.views.linked.row_links import CPU, for_target


def ran_on_cpu(session: Session) -> bool:
    """Return True if kernels of this CPU computed results."""
    return any(c.cpu_kernels for c in session.compilations)


def program_counts(session: Session, compilations: Iterable[CompilationRecord]) -> tuple[int, int]:
    """Count the kernels and ATen calls of the programs that ran, on this CPU if one did."""
    counted = [_cpu_counts(c) if ran_on_cpu(session) else _count_kernels_and_calls(c) for c in compilations]
    return sum(kernels for kernels, _ in counted), sum(calls for _, calls in counted)


def _count_kernels_and_calls(compilation: CompilationRecord) -> tuple[int, int]:
    return len(unique_kernels(compilation)), len(aten_calls_of(compilation))


def _cpu_counts(compilation: CompilationRecord) -> tuple[int, int]:
    ran = compilation.cpu_program
    kernels, calls = _count_kernels_and_calls(for_target(compilation, CPU))
    if not (ran.kernels or ran.externs) or ran.reason:
        calls += _aten_count(compilation, compilation.lowering, is_backward=False)
    if not ran.has_backward:
        calls += _aten_count(compilation, compilation.backward_lowering, is_backward=True)
    return kernels, calls


def _aten_count(compilation: CompilationRecord, lowering: LoweringRecord | None, *, is_backward: bool) -> int:
    """Count the operators of a graph that ATen ran, also those that kernels for a GPU fuse."""
    kernels = (k for k in compilation.kernels if k.id.startswith("b") == is_backward)
    fused = {node for k in kernels for node in (*k.fused_nodes, *(n for x in k.launches for n in x.nodes))}
    return len(aten_calls_of(replace(compilation, lowering=lowering, backward_lowering=None))) + len(fused)
