"""Backend "triton": lower a functional graph and build its kernels; ATen is the fallback."""

from __future__ import annotations

from dataclasses import replace

from engine import errors
from engine.backends.cpu_executor import cpu_executor
from engine.backends.lower_to_program import lower_to_program, target_of
from engine.backends.program_runner import program_runner
from engine.backends.record_program import note_target_mismatch, record_backward_program, record_program
from engine.compilation import Compilation
from engine.ir.aot.aot_graph import AotGraph
from engine.ir.graph_callable import Run
from engine.ir.kernels.kernel_edits import with_edited_kernels
from engine.ir.kernels.lowered_program import LoweredProgram
from engine.options import Options
from engine.records.lowering import LoweringRecord
from engine.runtime.aten_executor import aten_executor

MAX_KERNEL_BUILD_FAILURES = 8
"""Kernel build failures of one compilation after which ATen runs the whole graph."""


class TritonBackend:
    """Makes executors of one compilation's functional graphs: kernels, else ATen."""

    def __init__(self, options: Options, work: Compilation, *, on_gpu: bool, on_cpu: bool = False) -> None:
        self._on_cpu = on_cpu
        self._options = options
        self._work = work
        work.options = options
        self._on_gpu = on_gpu

    def make_executor(self, graph: AotGraph) -> Run:
        """Return the executor of a graph; without GPU kernels, CPU kernels or ATen run it."""
        run = self._backward(graph) if graph.stage == "backward" else self._forward(graph)
        return self._without_gpu(graph) if run is None else run

    def _without_gpu(self, graph: AotGraph) -> Run:
        """Return the executor of a graph without GPU kernels: CPU kernels or ATen."""
        return cpu_executor(graph, self._work) if self._on_cpu else aten_executor(graph)

    def _forward(self, graph: AotGraph) -> Run | None:
        """Lower a forward and record its kernels; return its executor, or None for ATen."""
        work = self._work
        if not self._on_gpu and work.session is None:
            return None
        try:
            with work.stage("lowering"):
                program = self._lower(graph)
        except Exception as error:
            failure = work.record_failure("lowering", error, "ATen runs the graph")
            work.update_record(lowering=LoweringRecord(target_of(self._options), error=failure.sentence))
            return None
        record_program(program, graph, work)
        if not self._on_gpu:
            return None
        try:
            program, run = self._build(program, graph)
        except Exception as error:
            work.record_failure("kernels", error, "ATen runs the graph")
            return None
        record_program(note_target_mismatch(program), graph, work)
        return run

    def _backward(self, graph: AotGraph) -> Run | None:
        """Lower a backward when it is first needed, and update the record of the compilation."""
        work = self._work
        if not self._on_gpu and work.session is None:  # the session for whose records it would be lowered is gone
            return None
        try:
            program, run = self._lower(graph), None
            if self._on_gpu:
                program, run = self._build(program, graph)
        except Exception as error:
            work.record_failure("lowering of the backward", error, "ATen runs the backward graph")
            failures = tuple(work.failures)
            work.later.update(lambda record: replace(record, failures=failures))
            return None
        return record_backward_program(run or self._without_gpu(graph), program, graph, work.later)

    def _lower(self, graph: AotGraph, refused: dict[str, str] | None = None) -> LoweredProgram:
        program = lower_to_program(graph, self._options, self._work.session, refused or {}, on_gpu=self._on_gpu)
        return with_edited_kernels(program, graph.passes.kernel_edits)

    def _build(self, program: LoweredProgram, graph: AotGraph) -> tuple[LoweredProgram, Run]:
        """Return a program and its executor; ATen replaces kernels that cannot be built."""
        refused: dict[str, str] = {}
        while True:
            try:
                return program, program_runner(program, graph, self._options, self._work.later)
            except errors.KernelBuildError as error:
                if len(self._work.failures) >= MAX_KERNEL_BUILD_FAILURES or refused.keys() >= set(error.nodes):
                    raise
                self._work.record_failure("kernels", error, "ATen computes the result of this kernel")
                refused |= dict.fromkeys(error.nodes, str(error))
            program = self._lower(graph, refused)
