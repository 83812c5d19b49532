"""Compiled autograd pipeline: run captured backwards through a backend and record them."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from engine.aot.node_properties import may_mutate
from engine.autograd.captured_backward import CapturedBackward
from engine.autograd.compiled_segments import TracedSegment, split_into_segments
from engine.autograd.eager_fallback import make_exit_hook
from engine.autograd.inline_compiled_backwards import inline_compiled_backwards
from engine.autograd.intercept import (
    BackwardEvent,
    CaptureSettings,
    install_interception,
    intercept_backwards,
    without_capture,
)
from engine.autograd.move_cpu_scalars import move_cpu_scalars
from engine.autograd.node_marks import mark_outputs
from engine.autograd.to_records import autograd_node_records, backward_record
from engine.backends.call_backend import call_backend
from engine.backends.registry import backend_name, eager_run
from engine.compilation import record_compilation
from engine.errors import named_error_line
from engine.graph.to_records import graph_record
from engine.guards.codegen import compile_check
from engine.ir.current_session import current_session
from engine.ir.graph_callable import Run
from engine.ir.node_values import tensors_in
from engine.ir.sources.roots import LocalSource
from engine.ir.traced_frame import ConstSlot, GraphInput, TracedGraph
from engine.options import Options
from engine.pipeline import Pipeline
from engine.pipeline_cache import pipeline_for
from engine.records.runtime import StageFailure
from engine.records.session import CompilationRecord, FrameRecord
from engine.torch_private.autograd import DisableAutocast, is_any_autocast_enabled
from engine.torch_private.entries import Feature, why_off


@contextlib.contextmanager
def capture_backwards(options: Options | None) -> Iterator[None]:
    """Capture the backwards of this thread and compile them with ``options``.

    None leaves them to torch's autograd engine.
    """
    with intercept_backwards(
        None if options is None or why_off(Feature.COMPILED_AUTOGRAD) else _capture_settings(options)
    ):
        yield


def capture_pipeline_for(options: Options) -> Pipeline:
    """Return the pipeline of functions whose backwards are captured.

    These are the backwards that run inside such a function, and those that go through its outputs.
    """
    if why_off(Feature.COMPILED_AUTOGRAD):
        return pipeline_for(options)
    pipeline = pipeline_for(replace(options, compiled_autograd=True))
    if pipeline.root_wrapper is None:
        pipeline.root_wrapper = functools.partial(_wrap_dispatcher, _capture_settings(options))
    return pipeline


def _wrap_dispatcher(settings: CaptureSettings, run: Run) -> Run:
    def compiled(*args: Any, **kwargs: Any) -> Any:
        with intercept_backwards(settings):
            result = run(*args, **kwargs)
        mark_outputs(result, settings)
        return result

    weakref.finalize(compiled, install_interception())
    return compiled


def _capture_settings(options: Options) -> CaptureSettings:
    pipeline = pipeline_for(options)
    compile = functools.partial(_compile_backward, pipeline)
    return CaptureSettings(pipeline, compile, bool(options.dynamic), functools.partial(_record_event, options))


def _compile_backward(pipeline: Pipeline, backward: CapturedBackward) -> Run:
    if pipeline.options.backend == "eager":
        return backward.eager_run()

    def compile(segment: TracedSegment) -> Run:
        cause = f"{segment.name.replace('_', ' ')} of {backward.id}, {segment.reason}"
        record = CompilationRecord(f"{backward.id}/{next(backward.compilation_numbers)}", backward.id, cause)
        session = current_session()
        if session is not None:
            session.add_frame(FrameRecord(backward.id, f"backward {backward.id}", "", 0, "backward"))
        return compile_standalone_graph(segment.module, segment.example_inputs, pipeline.options, record)

    def fail(name: str, error: Exception) -> None:
        session = current_session()
        if session is not None:
            text = f"{name.replace('_', ' ')} of {backward.id} could not be compiled: {named_error_line(error)}"
            session.add_failure(StageFailure("autograd", text, "it runs eagerly, operator by operator"))

    inlined, notes = inline_compiled_backwards(backward.graph)
    notes += move_cpu_scalars(inlined)
    if notes:
        _record_compiled_graph(backward, inlined, notes)
    run, _ = split_into_segments(
        inlined, backward.id, compile, fail, make_exit_hook(backward.capture, backward.execution_order)
    )

    def compiled(*lists: Any) -> Any:
        # Double backward needs operators that autograd records, autocast operators that it casts: run eagerly.
        as_is = torch.is_grad_enabled() or is_any_autocast_enabled()
        return backward.eager_run()(*lists) if as_is else run(*lists)

    return compiled


def _record_compiled_graph(backward: CapturedBackward, inlined: torch.fx.GraphModule, notes: tuple[str, ...]) -> None:
    session = current_session()
    if session is None:
        return
    record = graph_record(inlined, "captured", backward.id, "captured backward, as compiled by the backend")
    for recorded in session.backwards:
        if recorded.id == backward.id:
            nodes = autograd_node_records(backward, inlined)
            session.put_backward(replace(recorded, nodes=nodes, graphs=(record,), notes=(*recorded.notes, *notes)))


def _record_event(options: Options, event: BackwardEvent) -> None:
    session = current_session()
    if session is None:
        return
    id = "" if event.capture is None else event.capture.id
    if event.capture is not None and id not in {b.id for b in session.backwards}:
        record = backward_record(event.capture, event.capture.earlier_keys)
        session.put_backward(replace(record, backend=backend_name(options.backend)))
    session.add_backward_call(event.outcome, id, event.reason)


def compile_standalone_graph(
    module: torch.fx.GraphModule, reals: Sequence[Any], options: Options, record: CompilationRecord
) -> Run:
    """Compile an ATen graph; return ``run(*inputs) -> tuple``.

    Inputs are tensors and symbols. The graph runs eagerly if it cannot be compiled, if a call's inputs do not
    pass the guards, or if the graph mutates a tensor and two inputs share storage. ``record`` is completed
    and added to the session.
    """
    fakes = [n for n in module.graph.nodes if n.op == "placeholder"]
    inputs = [
        GraphInput(n.name, LocalSource(n.name), n.meta["val"], r, getattr(n.meta["val"], "_version", 0))
        for n, r in zip(fakes, reals, strict=True)
    ]
    graph = TracedGraph(ConstSlot(record.id), module, tuple(inputs))
    with (
        without_capture(),
        torch.no_grad(),
        DisableAutocast(),
        record_compilation(record, backend_name(options.backend)) as work,
    ):
        run = call_backend(graph, options, work)
    if work.guards:
        run = _run_if(compile_check(work.guards, tuple(n.name for n in fakes)).check, run, eager_run(module))
    return _run_if(_share_no_storage, run, eager_run(module)) if any(map(may_mutate, module.graph.nodes)) else run


def _share_no_storage(_: tuple[()], *inputs: Any) -> bool:
    """Return True if no two tensors share storage."""
    storages = [i.untyped_storage()._cdata for i in tensors_in(inputs)]
    return len(storages) == len(set(storages))


def _run_if(holds: Callable[..., bool], run: Run, otherwise: Run) -> Run:
    """Return ``run``, or ``otherwise`` for inputs that fail a check (called without cells)."""

    def call(*inputs: Any) -> Any:
        return run(*inputs) if holds((), *inputs) else otherwise(*inputs)

    return call
