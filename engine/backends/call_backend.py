"""Call the backend on one traced graph; the graph runs eagerly if that fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine import errors
from engine.backends.aot import compile_with_aot
from engine.backends.external import compile_externally
from engine.backends.registry import backend_callable, backend_name, eager_run, restoring_inputs
from engine.backends.traced_passes import run_traced_passes
from engine.backends.verify_correctness import verify_on_first_call
from engine.compilation import Compilation
from engine.graph.passes.lift_requires_grad import lift_requires_grad
from engine.ir.introspection.operator_facts import draws_random
from engine.ir.introspection.torch_global_state import GLOBAL_STATES
from engine.ir.node_metadata import provenance_of
from engine.ir.traced_frame import TracedGraph
from engine.options import Options, config
from engine.records.bytecode import Span
from engine.runtime.collective_order import watch_collectives
from engine.torch_private.global_state import loaded_dynamo_module

Run = Callable[..., Any]
AOT_BACKENDS = ("aot_eager", "triton")


def call_backend(traced: TracedGraph, options: Options, work: Compilation) -> Run:
    """Return the compiled graph; after an internal error, which is recorded, it runs eagerly.

    Raises:
        errors.BackendError: a user's backend failed, and its errors are not suppressed.
    """
    traced = run_traced_passes(traced, work)
    # A functorch transform must see the graph's operators, and a graph without computation needs no compiler.
    if options.backend != "eager" and GLOBAL_STATES["functorch"].read() is None and traced.has_computation():
        name = backend_name(options.backend)
        try:
            with work.end_if_cancelled():
                run = _compile(traced, options, work)
                return verify_on_first_call(run, traced, name, work.later) if config.verify_correctness else run
        except Exception as error:
            if callable(backend_callable(options.backend)) and (options.fullgraph or not _are_errors_suppressed()):
                raise _backend_error(name, error, _first_user_stack(traced)) from error
            work.record_failure(name, error, "this graph runs eagerly, operator by operator")
    work.record_fx_graph(traced)
    return watch_collectives(traced.graph.graph, restoring_inputs(eager_run(traced.graph), traced))


def _are_errors_suppressed() -> bool:
    """Return True if a graph runs eagerly when a user's backend fails."""
    stock = loaded_dynamo_module("config")
    return config.suppress_errors or bool(getattr(stock, "suppress_errors", False))


def _backend_error(name: str, error: Exception, stack: tuple[Span, ...]) -> errors.BackendError:
    """Return the error to raise; it is also an instance of torch.compile's own error class."""
    stock: Any = getattr(loaded_dynamo_module("exc"), "BackendCompilerFailed", None)
    backend_error = errors.BackendError(name, str(error), stack)
    if stock is None:
        return backend_error
    parts = {"__module__": errors.__name__, "__init__": lambda self, text: None}
    combined: Any = type("BackendError", (errors.BackendError, stock), parts)(str(backend_error))
    vars(combined).update(vars(backend_error), backend_name=name, inner_exception=error, msg=str(backend_error))
    caught_by_both: errors.BackendError = combined
    return caught_by_both


def _compile(traced: TracedGraph, options: Options, work: Compilation) -> Run:
    """Compile the graph; switches of ``requires_grad`` at its end are applied to its results."""
    lifted = lift_requires_grad(traced.graph)
    if lifted is None:
        return _compile_lifted(traced, options, work)
    draws = any(map(draws_random, traced.graph.graph.nodes))
    can_rerun = options.backend in AOT_BACKENDS and not traced.reruns_after_error and not draws
    with lifted.inputs_as_in_graph(traced.inputs):
        run = _compile_lifted(replace(traced, graph=lifted.graph), options, work)
        return lifted.wrap(run, eager_run(traced.graph) if can_rerun else None)


def _compile_lifted(traced: TracedGraph, options: Options, work: Compilation) -> Run:
    if options.backend in AOT_BACKENDS:
        return compile_with_aot(traced, options, work)
    return watch_collectives(traced.graph.graph, restoring_inputs(compile_externally(options, traced, work), traced))


def _first_user_stack(traced: TracedGraph) -> tuple[Span, ...]:
    """Return the user's stack at the first operation of a graph."""
    return next((stack for node in traced.graph.graph.nodes if (stack := provenance_of(node).stack)), ())
