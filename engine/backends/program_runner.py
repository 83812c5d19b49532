"""Run a lowered program on the current GPU: executor, CUDA graphs, fallback to ATen."""

from __future__ import annotations

import functools
import logging
import traceback

from engine.compilation import RecordUpdater
from engine.ir.aot.aot_graph import AotGraph
from engine.ir.current_session import current_session
from engine.ir.graph_callable import Run
from engine.ir.kernels.lowered_program import LoweredProgram
from engine.lowering.graph_lowering import cpu_nodes
from engine.options import Options
from engine.records.runtime import StageFailure
from engine.runtime.aten_executor import aten_executor
from engine.runtime.aten_fallback import with_aten_fallback
from engine.runtime.cuda_graphs import CudaGraphRecorder, CudaGraphReplay
from engine.runtime.graph_pools import output_memory
from engine.runtime.program_executor import ProgramExecutor
from engine.torch_private.entries import Feature, why_off

_log = logging.getLogger("engine")


def program_runner(program: LoweredProgram, graph: AotGraph, options: Options, record: RecordUpdater) -> Run:
    """Return the executor of a program, with CUDA graphs if enabled.

    ATen runs the graph instead when memory runs out or a kernel cannot be launched.

    Raises:
        errors.KernelBuildError: a kernel cannot be built.
    """
    run: Run = ProgramExecutor(
        program,
        is_boxed=graph.is_boxed,
        compilation=record.compilation,
        output_memory=output_memory if options.uses_cuda_graphs and graph.is_boxed else None,
    )
    if options.uses_cuda_graphs and _computes_inputs_on_cpu(graph):
        record.add_launch_mode(graph.stage, "Kernels are launched one by one: ATen computes with an input on the CPU.")
    elif options.uses_cuda_graphs and not why_off(Feature.CUDA_GRAPHS):
        run = CudaGraphReplay(
            run,
            CudaGraphRecorder(),
            is_boxed=graph.is_boxed,
            is_dynamic=bool(program.symbol_sources),
            visible_outputs=graph.num_user_outputs,
            first_tangent=graph.num_saved_inputs,
            written_inputs=frozenset(map(program.inputs.index, program.written_inputs)),
            on_status=functools.partial(record.add_launch_mode, graph.stage),
        )
    return with_recorded_fallback(run, graph)


def _computes_inputs_on_cpu(graph: AotGraph) -> bool:
    """Return True if a call on the CPU reads an input, which a recording has only on the GPU."""
    nodes = graph.module.graph
    on_cpu = cpu_nodes(nodes)
    return any(not on_cpu.isdisjoint(placeholder.users) for placeholder in nodes.find_nodes(op="placeholder"))


def with_recorded_fallback(run: Run, graph: AotGraph) -> Run:
    """Return ``run`` with ATen as its fallback; the current session gets each failure."""
    fallback = functools.partial(aten_executor, graph)
    return with_aten_fallback(run, fallback, _record_fallback, is_boxed=graph.is_boxed)


def _record_fallback(error: BaseException, sentence: str, action: str) -> None:
    """Record a failure of kernels and its fallback in the current session, and log it."""
    session = current_session()
    instead = action or "the error is raised: the inputs of the backward were already freed"
    _log.warning("%s Fallback: %s.", sentence, instead)
    if session is not None:
        detail = "".join(traceback.format_exception(error))
        session.add_failure(StageFailure("runtime", sentence, instead, detail))
