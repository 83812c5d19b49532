"""Record lowered programs: lowering, kernels, and inputs to verify the kernels on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine import session_jobs
from engine.compilation import Compilation, RecordUpdater
from engine.ir.aot.aot_graph import KERNEL_GAIN_ATTR, AotGraph
from engine.ir.graph_callable import Run
from engine.ir.kernels.lowered_program import CPU_TARGET, LoweredProgram
from engine.ir.node_metadata import provenance_of
from engine.ir.node_values import map_tensors, tensors_in
from engine.kernels.gpu_targets import default_target
from engine.kernels.to_records import kernel_records
from engine.lowering.memory.live_memory import live_memory, size_hints
from engine.records.kernels import KernelRecord
from engine.records.lowering import CpuProgramRecord, LoweringRecord, MemoryRecord
from engine.records.session import CompilationRecord
from engine.torch_reports import log_kernels

MAX_KEPT_BACKWARD_BYTES = 1 << 27
"""Maximum size in bytes of a first backward's inputs that the session retains."""


def record_program(program: LoweredProgram, graph: AotGraph, work: Compilation) -> None:
    """Record the program of a forward; a program that replaces it is recorded over it."""
    if program is work.program:
        return
    work.program, work.graph = program, graph
    log_kernels(f"Kernels of compilation {work.id}", program.shown_kernels)
    if work.session is not None:
        work.update_record(lowering=_with_memory(program, graph), kernels=_shown_kernels(program))


def _shown_kernels(program: LoweredProgram) -> tuple[KernelRecord, ...]:
    return kernel_records(program.shown_kernels, hints=size_hints(program))


def _cpu_kernels(program: LoweredProgram) -> tuple[KernelRecord, ...]:
    return kernel_records(program.kernels, "llvm", size_hints(program))


def _with_memory(program: LoweredProgram, graph: AotGraph) -> LoweringRecord:
    return replace(program.record, memory=_memory(program, graph))


def _memory(program: LoweredProgram, graph: AotGraph) -> MemoryRecord:
    """Return the live memory of a program, with what its forward saved for it."""
    saved = {n.name for n in graph.module.graph.nodes if n.op == "placeholder" and provenance_of(n).nodes}
    return live_memory(program, "call" if graph.stage == "aten" else graph.stage, saved)


def record_cpu_program(run: Run, program: LoweredProgram, graph: AotGraph, work: Compilation) -> Run:
    """Record the program that runs on the CPU, and return its executor.

    The executor of a backward retains its first inputs.
    """
    log_kernels(f"CPU kernels of compilation {work.id}, {graph.stage}", program.kernels)
    if graph.stage == "backward":
        return record_backward_program(run, program, graph, work.later)
    work.cpu_program, work.graph = program, graph
    kernels = _cpu_kernels(program)
    record, memory = program.record, (_memory(program, graph),)
    cpu_program = CpuProgramRecord(
        kernels, record.decisions, record.externs, memory=memory, autotune_choices=record.autotune_choices
    )
    work.update_record(lowering=work.record.with_cpu_program(cpu_program).lowering)
    return run


def record_no_cpu_program(reason: str, graph: AotGraph, work: Compilation) -> None:
    """Record why ATen runs a graph on the CPU; a backward is left out."""
    if graph.stage != "backward" and work.session is not None:
        cpu_program = CpuProgramRecord(reason=reason)
        work.update_record(lowering=work.record.with_cpu_program(cpu_program).lowering)


def note_target_mismatch(program: LoweredProgram) -> LoweredProgram:
    """Note in the record if kernels are shown for another target than the GPU they run on."""
    own_target = default_target()
    if program.target == own_target:
        return program
    note = f"The kernels shown are compiled for {program.target}. The kernels that run are compiled for this GPU, {own_target}."
    return replace(program, record=replace(program.record, launch_mode=note))


def record_backward_program(run: Run, program: LoweredProgram, graph: AotGraph, record: RecordUpdater) -> Run:
    """Add a backward's kernels to its compilation's record.

    The inputs of its first run are retained, to verify the kernels on.
    """
    if record.session is None:
        return run

    is_cpu = program.target == CPU_TARGET

    def add(compilation: CompilationRecord) -> CompilationRecord:
        forward_program = compilation.cpu_program
        if forward_program.has_backward if is_cpu else compilation.backward_lowering is not None:
            return compilation  # a backward specialized to other undefined tangents
        if is_cpu:
            kernels = (*forward_program.kernels, *_cpu_kernels(program))
            decisions = (*forward_program.decisions, *program.record.decisions)
            externs = (*forward_program.externs, *program.record.externs)
            memory = (*forward_program.memory, _memory(program, graph))
            choices = (*forward_program.autotune_choices, *program.record.autotune_choices)
            cpu_program = CpuProgramRecord(
                kernels, decisions, externs, True, forward_program.reason, memory, choices, forward_program.later_calls
            )
            return compilation.with_cpu_program(cpu_program)
        kernels = (*compilation.kernels, *_shown_kernels(program))
        return replace(compilation, backward_lowering=_with_memory(program, graph), kernels=kernels)

    record.update(add)
    waiting = [True]

    def first(values: list[Any]) -> Any:
        session = record.session if waiting and waiting.pop() else None
        if session is not None:
            saved = map_tensors(lambda t: t.detach(), values)
            if sum(v.nbytes for v in tensors_in(saved)) <= MAX_KEPT_BACKWARD_BYTES:
                lowered = session_jobs.LoweredGraph(program, graph, saved)
                session_jobs.add_lowered_graph(session, record.compilation, lowered, target=program.target)
        return run(values)

    if (gain := getattr(run, KERNEL_GAIN_ATTR, None)) is not None:
        setattr(first, KERNEL_GAIN_ATTR, gain)
    return first


def record_later_calls(record: RecordUpdater, reason: str) -> None:
    """Record why calls after the first backward run in ATen."""
    record.update(lambda compilation: with_later_calls(compilation, reason))


def with_later_calls(compilation: CompilationRecord, reason: str) -> CompilationRecord:
    """Return the record with the reason why calls run in ATen."""
    return compilation.with_cpu_program(replace(compilation.cpu_program, later_calls=reason))
