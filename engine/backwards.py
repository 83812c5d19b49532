"""Captured backwards for people: which backend runs them, and what a session hears of them."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from engine.autograd.finish import leaving
from engine.autograd.follow import follow
from engine.autograd.front import Event, Settings, attend, capturing
from engine.autograd.inline import inline
from engine.autograd.run import CapturedBackward
from engine.autograd.scalars import move_scalars
from engine.autograd.segments import Traced, divided
from engine.autograd.tell import backward_record, nodes_of_eager
from engine.graph.tell import graph_record
from engine.ir.context import current_session
from engine.options import Options
from engine.pipeline import Pipeline, backend_name, pipeline_for
from engine.records.runtime import Failure
from engine.records.session import CompilationRecord, FrameRecord

Run = Callable[..., Any]


@contextlib.contextmanager
def captured_backwards(options: Options | None) -> Iterator[None]:
    """Capture the backwards of this thread while the context is open, and run them as ``options`` say (None: leave them to torch)."""
    with capturing(None if options is None else _settings(options)):
        yield


def capturing_pipeline(options: Options) -> Pipeline:
    """The pipeline for functions whose backwards are captured: those that run inside, and those that go back through what they return."""
    pipeline = pipeline_for(replace(options, compiled_autograd=True))
    if pipeline.around is None:
        pipeline.around = functools.partial(_around, _settings(options))
    return pipeline


def _around(settings: Settings, run: Run) -> Run:
    def compiled(*args: Any, **kwargs: Any) -> Any:
        with capturing(settings):
            result = run(*args, **kwargs)
        follow(result, settings)
        return result

    weakref.finalize(compiled, attend())
    return compiled


def _settings(options: Options) -> Settings:
    pipeline = pipeline_for(options)
    compile = functools.partial(_compile, pipeline)
    return Settings(pipeline, compile, bool(options.dynamic), functools.partial(_tell, options))


def _compile(pipeline: Pipeline, backward: CapturedBackward) -> Run:
    if pipeline.options.backend == "eager":
        return backward.eager()

    def compile(segment: Traced) -> Run:
        cause = f"{segment.name.replace('_', ' ')} of {backward.id}, {segment.why}"
        record = CompilationRecord(f"{backward.id}/{next(backward.compilations)}", backward.id, cause)
        session = current_session()
        if session is not None:
            session.add_frame(FrameRecord(backward.id, f"backward {backward.id}", "", 0, "backward"))
        return pipeline.compile_alone(segment.module, segment.reals, record)

    def fail(name: str, error: Exception) -> None:
        session = current_session()
        if session is not None:
            text = f"{name.replace('_', ' ')} of {backward.id} could not be compiled: {type(error).__name__}: {error}"
            session.add_failure(Failure("autograd", text.splitlines()[0], "it runs operator by operator"))

    whole, notes = inline(backward.graph)
    notes += move_scalars(whole)
    if notes:
        _amend(backward, whole, notes)
    run, _ = divided(whole, backward.id, compile, fail, leaving(backward.captured, backward.order))

    def compiled(*lists: Any) -> Any:
        # Gradients that are to be differentiated themselves must come from operators that autograd knows, and autocast from those that it casts.
        as_is = torch.is_grad_enabled() or torch._C._is_any_autocast_enabled()
        return backward.eager()(*lists) if as_is else run(*lists)

    return compiled


def _amend(backward: CapturedBackward, whole: torch.fx.GraphModule, notes: tuple[str, ...]) -> None:
    """Show the graph that a backend compiles in place of the one with calls in it."""
    session = current_session()
    if session is None:
        return
    record = graph_record(whole, "captured", backward.id, "captured backward, as it is compiled")
    for known in session.backwards:
        if known.id == backward.id:
            nodes = nodes_of_eager(backward, whole)
            session.put_backward(replace(known, nodes=nodes, graphs=(record,), notes=(*known.notes, *notes)))


def _tell(options: Options, event: Event) -> None:
    session = current_session()
    if session is None:
        return
    id = "" if event.capture is None else event.capture.id
    if event.capture is not None and id not in {b.id for b in session.backwards}:
        record = backward_record(event.capture, event.capture.before)
        session.put_backward(replace(record, backend=backend_name(options.backend)))
    session.add_backward_call(event.outcome, id, event.reason)
