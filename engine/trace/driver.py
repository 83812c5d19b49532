"""Driver of the tracer: attempts, restarts, graph breaks, skips and the trace record."""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import engine.trace.variables.register_all  # noqa: F401 -- fills the tables of builders, rules and handlers
from engine import errors
from engine.bytecode.source_positions import span_of
from engine.bytecode.to_records import instruction_records
from engine.ir.compiler_protocol import CompileRequest
from engine.ir.current_session import current_session
from engine.ir.guards.base import Guard
from engine.ir.introspection.torch_global_state import without_functorch_transforms, without_torch_function_modes
from engine.ir.traced_frame import TracedFrame
from engine.options import Options
from engine.process_state import FAKE_TENSOR_LOGGER, higher_recursion_limit, silence_logger
from engine.records.trace import DiscardedAttempt, TraceRecord
from engine.torch_private.dispatch import PreserveDispatchKeyGuard
from engine.torch_private.fake_tensors import TracingContext, tracing
from engine.trace.attempt import TraceAttempt, raise_graph_break
from engine.trace.exc import RestartTracing, SkipFrame, TracerException, TracingFinished
from engine.trace.graph_breaks.reasons import make_break_record
from engine.trace.interpreter_loop import describe_internal_error
from engine.trace.tracer import Tracer
from engine.trace.variables.objects.class_lookup import CLASS_ATTR_WRITES

_MAX_RESTARTS = 8


def trace_frame(request: CompileRequest, options: Options, *, steps: bool = False) -> TracedFrame:
    """Trace one call of a function into a graph, guards and new bytecode.

    Code that cannot be traced becomes a graph break or a skip, with its reason.

    Raises:
        errors.GraphBreak: under ``options.fullgraph``, the frame does not trace into one graph.
        errors.ConstraintViolation: traced code specializes a dimension that the user marked as dynamic.
    """
    code = request.function.__code__
    graph_break = _skip_for_code_flags(code)
    if graph_break is not None:
        return _make_skipped_frame(request, options, graph_break, ())
    restart: RestartTracing | None = None
    restarts = 0
    discarded: list[DiscardedAttempt] = []
    while restarts < _MAX_RESTARTS:
        attempt = TraceAttempt(request, options, restart, steps, tuple(discarded))
        try:
            with without_torch_function_modes(), without_functorch_transforms(), _tracing_environment(attempt.tx):
                return _run_attempt(attempt, discarded)
        except TracingFinished as finished:
            return finished.traced
        except RestartTracing as restart_request:
            _clear_tracebacks(restart_request, restart_request.reason)
            restart_request.hide_compiler = restart_request.hide_compiler or not attempt.tx.torch_state.is_compiling
            restart_request.rng_mode = restart_request.rng_mode or attempt.tx.random_state.mode
            request = replace(request, dynamic_dims={**request.dynamic_dims, **restart_request.dynamic_dims})
            restart = restart_request
            restarts += restart_request.break_before > 0
        except SkipFrame as skip:
            _clear_tracebacks(skip)
            guards = attempt.tx.guards.all() if skip.kind in ("raises", "global-state", "fake-tensor") else ()
            return _make_skipped_frame(request, options, skip, attempt.inlined_calls_and_steps(), guards)
        except (errors.GraphBreak, errors.ConstraintViolation):
            raise
        except TracerException as signal:
            internal = SkipFrame("internal", f"{type(signal).__name__}: {signal}")
            return _make_skipped_frame(request, options, internal, attempt.inlined_calls_and_steps())
        except RecursionError:
            deep = SkipFrame("depth", "tracing its calls needs more stack than Python has left")
            skipped = _make_skipped_frame(request, options, deep, attempt.inlined_calls_and_steps())
            return replace(skipped, compiles_callees=False)
        except Exception as error:  # an internal error must never reach the user's program
            internal = SkipFrame("internal", describe_internal_error(error))
            return _make_skipped_frame(request, options, internal, attempt.inlined_calls_and_steps())
        finally:
            with PreserveDispatchKeyGuard():
                attempt.release()
    what = "tracing restarted too often: each attempt found another reason to start again"
    return _make_skipped_frame(request, options, SkipFrame("internal", what), ())


def _clear_tracebacks(*errors: TracerException) -> None:
    """Clear the tracebacks.

    Their frames would hold the call's arguments until the next garbage collection. Torch's frames may also hold guards
    (printing a tensor does), and a guard restores the dispatch keys of the moment of its creation whenever it is freed.
    """
    with PreserveDispatchKeyGuard():
        for error in errors:
            error.__traceback__ = error.__cause__ = error.__context__ = None


def _run_attempt(attempt: TraceAttempt, discarded: list[DiscardedAttempt]) -> TracedFrame:
    """Run an attempt; on a restart, record what is discarded.

    This comes before torch's state is restored.
    """
    try:
        return attempt.run()
    except RestartTracing as restart_request:
        discarded.append(attempt.attempt_record(restart_request))
        raise


def _skip_for_code_flags(code: types.CodeType) -> SkipFrame | None:
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return SkipFrame("async-frame", "it is asynchronous")
    if code.co_flags & inspect.CO_GENERATOR:
        return SkipFrame("generator-frame", "it is a generator")
    return None


@contextlib.contextmanager
def _tracing_environment(tx: Tracer) -> Iterator[None]:
    """Set up torch's state for tracing, and undo what traced code switched, also on errors."""
    CLASS_ATTR_WRITES.clear()
    try:
        with higher_recursion_limit, silence_logger(FAKE_TENSOR_LOGGER), tracing(TracingContext(tx.symbols.fake_mode)):
            yield
    finally:
        CLASS_ATTR_WRITES.clear()
        tx.torch_state.restore()


def _make_skipped_frame(
    request: CompileRequest, options: Options, skip: SkipFrame, calls_and_steps: Any, guards: tuple[Guard, ...] = ()
) -> TracedFrame:
    """Make the result for a frame that runs as plain Python while ``guards`` hold."""
    code = request.function.__code__
    stack = skip.stack or (span_of(code, 0),)
    record = make_break_record(skip.kind, skip.what, stack, skipped=True, also=skip.also)
    if options.fullgraph and skip.kind != "raises":
        raise_graph_break(record)
    inlined, steps = calls_and_steps or ((), ())
    records_trace = current_session() is not None
    trace_record = TraceRecord(instruction_records(code) if records_trace else (), (), inlined, (record,), (), steps)
    return TracedFrame(None, guards, trace_record)
