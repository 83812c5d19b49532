"""Backends "aot_eager" and "triton": functionalize the graph, run it by ATen or kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch

from engine import replay_values
from engine.aot.driver import AotSettings, compile_graph
from engine.backends.record_program import record_later_calls, with_later_calls
from engine.backends.registry import restoring_inputs, watched_run
from engine.compilation import Compilation
from engine.ir.aot.aot_graph import AotGraph
from engine.ir.graph_callable import Run
from engine.ir.guards.base import Cause, Guard
from engine.ir.guards.global_state import GlobalStateMatch
from engine.ir.introspection.torch_global_state import GLOBAL_STATES
from engine.ir.node_values import map_tensors
from engine.ir.sources.roots import ConstantSource
from engine.ir.traced_frame import TracedGraph
from engine.options import Options, config, user_cache_dir
from engine.runtime.aten_executor import aten_executor
from engine.runtime.workers.compile_jobs import start_workers
from engine.torch_private.entries import Feature, why_off
from engine.torch_reports import log_graph

RUNS_AS_TRACED = "Calls run the traced graph, whose operators are those of eager."


def compile_with_aot(traced: TracedGraph, options: Options, work: Compilation) -> Run:
    """Compile the graph, with its backward if gradients are needed; records go to ``work``."""
    settings = AotSettings(
        _logging_graphs(_with_collective_watch(_executor_maker(traced, options, work)), work.id),
        _with_collective_watch(aten_executor),
        recompute_random=bool(options.extra.get("recompute_random", False)),
        cache_dir=user_cache_dir() / "aot" if config.disk_cache and not why_off(Feature.DISK_CACHE) else None,
        take_assumption_guards=traced.late_shape_guards,
        passes=work.passes,
        chooses_layouts=options.backend == "triton",
        record_eager_calls=functools.partial(record_later_calls, work.later),
    )
    with work.stage("aot"):
        result = compile_graph(
            traced.graph,
            traced.inputs,
            compilation=work.id,
            settings=settings,
            changes_objects=traced.has_object_side_effects,
            reruns_after_error=traced.reruns_after_error,
            autograd_uses_after_break=traced.autograd_uses_after_break,
        )
    work.update_record(aot=result.record, graphs=result.graphs)
    work.record_undone_passes(p for g in result.graphs if g.stage != "fx" for p in g.passes)
    work.guards = (*work.guards, *result.guards, *kernel_guards(options, {*_devices(traced)}))
    if work.session is not None:
        if result.runs_as_traced:
            work.update_record(lowering=with_later_calls(work.record, RUNS_AS_TRACED).lowering)
        _remember_inputs(traced, work)
        if result.run_with_probe is not None:
            replay_values.remember_call(work.session, work.id, result.run_with_probe, traced.inputs)
    # A functional graph restores its inputs itself; a graph that runs as traced does not.
    if result.record.fallback is None:
        return result.run
    return watched_run(restoring_inputs(result.run, traced), traced.graph.graph)


def _with_collective_watch(make: Callable[[AotGraph], Run]) -> Callable[[AotGraph], Run]:
    """Wrap ``make`` so that executors report their collectives to the watcher."""
    return lambda graph: watched_run(make(graph), graph.module.graph)


def _logging_graphs(make: Callable[[AotGraph], Run], compilation: str) -> Callable[[AotGraph], Run]:
    """Return ``make``, with each functional graph logged first."""

    def make_executor(graph: AotGraph) -> Run:
        log_graph(("aot_graphs",), f"Functional graph of compilation {compilation}, {graph.stage}", graph.module)
        return make(graph)

    return make_executor


def _executor_maker(traced: TracedGraph, options: Options, work: Compilation) -> Callable[[AotGraph], Run]:
    """Return the function that creates the executor of a functional graph.

    Without a GPU and without CPU kernels, kernels are only generated for the records. A backward that is compiled later holds the result,
    so it must not refer to ``traced``, which holds this call's tensors.
    """
    devices = {*_devices(traced)}
    on_gpu, on_cpu = "cuda" in devices, config.cpu_kernels and devices <= {"cpu"}
    if options.backend != "triton" or not (on_gpu or on_cpu or work.session is not None):
        return aten_executor
    if work.session is not None:
        start_workers()
    # Lowering takes half a second to import: a process whose graphs all run through ATen does without.
    from engine.backends.triton import TritonBackend

    return TritonBackend(options, work, on_gpu=on_gpu, on_cpu=on_cpu).make_executor


def _devices(traced: TracedGraph) -> Iterator[str]:
    """Yield the device types of the call's tensors."""
    return (i.example_value.device.type for i in traced.inputs if i.has_real_tensor)


def kernel_guards(options: Options, devices: set[str]) -> tuple[Guard, ...]:
    """Return guards on settings that GPU kernels have as constants: precision of products."""
    if options.backend != "triton" or "cuda" not in devices:
        return ()
    state, why = "float32_matmul_precision", "kernels of matrix products are generated for it"
    origin = ConstantSource(torch, "torch")
    return (GlobalStateMatch(origin, state, GLOBAL_STATES[state].read(), cause=Cause(reason=why)),)


def _remember_inputs(traced: TracedGraph, work: Compilation) -> None:
    """Retain the call's inputs, detached, if there are kernels to verify on them."""
    if work.program is not None or work.cpu_program is not None:
        values = (i.example_value for i in traced.inputs)
        work.inputs = map_tensors(lambda t: t.detach(), values)
