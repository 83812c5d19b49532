"""Jobs of a live session after compilation: compile, verify and time its kernels."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.errors import BadArgument
from engine.interrupts.weak_tables import WeakTable
from engine.ir.aot.aot_graph import AotGraph
from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.ir.kernels.lowered_program import CPU_TARGET, LoweredProgram
from engine.ir.node_values import tensors_in
from engine.kernels.cpu.listings import compile_for_cpu
from engine.options import Options
from engine.process_state import make_lock
from engine.records.kernels import KernelRecord, KernelTimingRecord, TargetRecord, VerifyRecord
from engine.records.session import CompilationRecord, Session
from engine.runtime.heap import trim_heap
from engine.runtime.time_cpu_kernels import time_cpu_kernels
from engine.runtime.time_kernels import time_kernels
from engine.runtime.verify.kernels import verify_kernels
from engine.runtime.workers.compile_jobs import CompileJob, submit_compile_job


@dataclass(frozen=True)
class LoweredGraph:
    """One lowered graph of a live session, with the inputs it was compiled for (detached)."""

    program: LoweredProgram
    graph: AotGraph
    inputs: tuple[Any, ...]
    options: Options = field(default_factory=Options)


@dataclass
class _SessionJobs:
    """Jobs and lowered graphs of a live session; a loaded session has none."""

    lowered_graphs: dict[str, tuple[LoweredGraph, ...]] = field(default_factory=dict)
    """Lowered graphs by compilation id: the forward, and the backward once it is lowered."""
    jobs: list[CompileJob] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=make_lock)
    stop_event: threading.Event = field(default_factory=threading.Event)
    """Set when the session's jobs, or its autotuning during compilation, are cancelled."""


_session_jobs: WeakTable[Session, _SessionJobs] = WeakTable()


def _jobs_of(session: Session) -> _SessionJobs:
    return _session_jobs.setdefault(session, _SessionJobs())


def add_lowered_graph(session: Session, compilation: str, lowered: LoweredGraph, *, target: str) -> None:
    """Store a lowered graph and start compiling its kernels for ``target`` in the background.

    After ``cancel`` nothing is started.
    """
    lowered_graphs = _jobs_of(session).lowered_graphs
    is_backward = lowered.graph.stage == "backward"
    earlier = (
        x for x in lowered_graphs.get(compilation, ()) if is_backward or x.program.target != lowered.program.target
    )
    lowered_graphs[compilation] = (*earlier, lowered)
    if not stop_event_of(session).is_set():
        compile_for(session, compilation, target, only=lowered)


def lowered_graphs_of(session: Session) -> dict[str, tuple[LoweredGraph, ...]]:
    """Return the lowered graphs of a live session by compilation id; empty for a loaded one."""
    return _jobs_of(session).lowered_graphs


def compile_for(
    session: Session, compilation: str, target: str, *, only: LoweredGraph | None = None
) -> CompileJob | None:
    """Compile the kernels of one compilation for one target in the background.

    They are added to the session one by one. ``only``: restrict to this graph. Returns None if there are no kernels.
    """
    graphs = lowered_graphs_of(session).get(compilation, ()) if only is None else (only,)
    is_cpu = target == CPU_TARGET
    programs = [lowered.program for lowered in graphs if (lowered.program.target == CPU_TARGET) == is_cpu]
    launched = [k for program in programs for k in (program.kernels if is_cpu else program.shown_kernels)]
    kernels = unique_kernels(launched)
    if not kernels:
        return None
    alive = weakref.ref(session)

    def on_done(kernel: str, record: TargetRecord) -> None:
        session = alive()
        if session is not None:
            session.update_compilation(compilation, lambda c: _with_target_record(c, kernel, record))

    job = submit_compile_job(kernels, target, on_done)
    _jobs_of(session).jobs.append(job)
    return job


def compile_cpu_kernels_here(session: Session) -> None:
    """Compile the CPU kernels of a live session for their listings, in this process."""
    for compilation, graphs in lowered_graphs_of(session).items():
        programs = (lowered.program for lowered in graphs if lowered.program.target == CPU_TARGET)
        for kernel in unique_kernels([k for p in programs for k in p.kernels]):
            binary = compile_for_cpu(kernel.name, kernel.text)
            session.update_compilation(
                compilation, functools.partial(_with_target_record, kernel=kernel.id, record=binary)
            )


def unique_kernels(kernels: Sequence[GeneratedKernel]) -> tuple[GeneratedKernel, ...]:
    """Return the kernels without duplicates, by id."""
    return tuple({k.id: k for k in kernels}.values())


def with_kernels(compilation: CompilationRecord, change: Callable[[KernelRecord], KernelRecord]) -> CompilationRecord:
    """Return a compilation with all its kernels changed, for a GPU and for the CPU."""
    changed = replace(compilation, kernels=tuple(map(change, compilation.kernels)))
    if not compilation.cpu_kernels:
        return changed
    return changed.with_cpu_program(
        replace(compilation.cpu_program, kernels=tuple(map(change, compilation.cpu_kernels)))
    )


def _with_target_record(compilation: CompilationRecord, kernel: str, record: TargetRecord) -> CompilationRecord:
    def changed(k: KernelRecord) -> KernelRecord:
        others = tuple(t for t in k.targets if t.target != record.target)
        return replace(k, targets=(*others, record)) if k.id == kernel else k

    return with_kernels(compilation, changed)


def wait(session: Session, timeout: float | None = None) -> bool:
    """Wait for the background jobs; return False if ``timeout`` seconds passed first."""
    end = None if timeout is None else time.monotonic() + timeout
    for job in tuple(_jobs_of(session).jobs):
        seconds_left = None if end is None else max(0.0, end - time.monotonic())
        if not job.wait(seconds_left):
            return False
    return True


def cancel(session: Session) -> None:
    """Cancel the session's background jobs and its autotuning; finished results stay."""
    _jobs_of(session).stop_event.set()
    for job in tuple(_jobs_of(session).jobs):
        job.cancel()


def stop_event_of(session: Session) -> threading.Event:
    """Return the event that is set when the session's jobs are cancelled."""
    return _jobs_of(session).stop_event


def verify_session_kernels(session: Session) -> dict[str, VerifyRecord]:
    """Verify every kernel of a live session against ATen; results by "compilation kernel".

    Kernels for the CPU run here, those for a GPU in Triton's interpreter. A loaded session has no inputs: its kernels are "not verifiable".
    """
    results: dict[str, VerifyRecord] = {}
    live = lowered_graphs_of(session)
    for compilation in session.compilations:
        kernels = (*compilation.cpu_kernels, *compilation.kernels)
        if not kernels:
            continue
        lowered = live.get(compilation.id)
        if not lowered:
            gone = VerifyRecord("not verifiable", "", note="not verifiable: a loaded session has no inputs to run with")
            results_by_kernel = {k.id: gone for k in kernels}
        else:
            with _jobs_of(session).lock:
                session.set_stage(f"verify {compilation.id}")
                results_by_kernel = {}
                for graph in lowered:
                    results_by_kernel |= verify_kernels(graph.program, graph.graph, graph.inputs)
        session.update_compilation(compilation.id, functools.partial(_with_verify, results=results_by_kernel))
        results.update({f"{compilation.id} {k}": v for k, v in results_by_kernel.items()})
    session.set_stage("")
    trim_heap()
    return results


def time_session_kernels(session: Session) -> int:
    """Time every kernel of a live session where it runs; return the number timed.

    The kernel records then have the timings.

    Raises:
        BadArgument: no kernel of the session can run here.
    """
    count = 0
    problem = (
        "the session was loaded from a file, or has no kernels" if not any(lowered_graphs_of(session).values()) else ""
    )
    for compilation, graphs in lowered_graphs_of(session).items():
        for lowered in graphs:
            is_cpu = lowered.program.target == CPU_TARGET
            if not is_cpu and not any(x.is_cuda for x in tensors_in(lowered.inputs)):
                problem = problem or "ATen runs it on this CPU, without kernels"
                continue
            session.set_stage(f"measure {compilation}")
            try:
                timings = (time_cpu_kernels if is_cpu else time_kernels)(lowered.program, lowered.inputs)
            except Exception as error:
                problem = problem or f"{type(error).__name__}: {error}"
                continue
            count += len(timings)
            session.update_compilation(compilation, functools.partial(_with_timings, timings=timings))
    session.set_stage("")
    if not count:
        raise BadArgument(f"Nothing could be measured: {problem or 'no kernel was launched'}.")
    return count


def _with_timings(compilation: CompilationRecord, timings: dict[str, KernelTimingRecord]) -> CompilationRecord:
    return with_kernels(compilation, lambda k: replace(k, measured=timings.get(k.id, k.measured)))


def _with_verify(compilation: CompilationRecord, results: dict[str, VerifyRecord]) -> CompilationRecord:
    return with_kernels(compilation, lambda k: replace(k, verify=results.get(k.id, k.verify)))
