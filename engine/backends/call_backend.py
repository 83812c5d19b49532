"""Call the backend on one traced graph; the graph runs eagerly if that fails."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch

from engine import errors
from engine.aot.functionalize import fake_mode_of
from engine.aot.layout_mutation import fake_at_entry
from engine.backends.aot import compile_with_aot
from engine.backends.external import compile_externally
from engine.backends.registry import backend_callable, backend_name, eager_run, restoring_inputs, watched_run
from engine.compilation import Compilation, RecordUpdater
from engine.graph.passes.lift_requires_grad import lift_requires_grad
from engine.graph.passes.recorder import PASS_RECORDS_KEY, PassRecorder
from engine.graph.user_passes.fake_run import GraphFacts, number_of_assumptions
from engine.graph.user_passes.run_passes import PassStage, run_user_passes
from engine.ir.graph_callable import Run
from engine.ir.introspection.operator_facts import draws_random
from engine.ir.introspection.torch_global_state import GLOBAL_STATES
from engine.ir.node_metadata import provenance_of
from engine.ir.pass_set import PASS_STAGES, ordered
from engine.ir.traced_frame import GraphInput, TracedGraph
from engine.options import Options, config
from engine.records.bytecode import Span
from engine.records.runtime import StageFailure
from engine.runtime.verify.first_call import verify_first_call
from engine.torch_private.global_state import loaded_dynamo_module


def verify_on_first_call(run: Run, traced: TracedGraph, backend: str, record: RecordUpdater) -> Run:
    """Return ``run`` with its first call verified.

    If the result is wrong there is a warning, and eager runs this call and all later ones.
    """

    def report(difference: str) -> None:
        if not difference:
            return
        is_wrong = not difference.startswith("not verifiable")
        sentence = f"verification of {record.compilation} ({backend}): {difference}"
        if is_wrong:
            warnings.warn(f"{sentence}; the graph runs eagerly from now on.", errors.WrongResult, stacklevel=3)
        fallback = "the graph runs eagerly, operator by operator" if is_wrong else "the compiled result is used"
        failure = StageFailure("verification", sentence, fallback)
        record.update(lambda compilation: replace(compilation, failures=(*compilation.failures, failure)))

    return verify_first_call(run, traced.graph, eager_run(traced.graph), report)


def run_traced_passes(traced: TracedGraph, work: Compilation) -> TracedGraph:
    """Return the traced graph after the registered passes.

    Records of the passes are added to the ``meta`` of the graph. New assumptions about symbolic sizes become guards of
    the compilation.
    """
    passes = work.passes.passes and work.passes.at("traced")
    if not passes:
        return traced
    mode = fake_mode_of(traced.graph, traced.inputs)
    num_assumptions = number_of_assumptions(mode)
    facts = GraphFacts(mode, "example_value", lambda: [_fake_input(i) for i in traced.inputs])
    real = tuple(i.example_value for i in traced.inputs)
    watch = PassRecorder(traced.graph)
    order = ordered(passes, PASS_STAGES["traced"])
    stage = PassStage(facts, False, work.passes.compare, lambda: real)
    run_user_passes(watch, (p.of_user for p in order if p.of_user is not None), stage)
    watch.module.meta[PASS_RECORDS_KEY] = (*watch.module.meta.get(PASS_RECORDS_KEY, ()), *watch.records)
    work.record_undone_passes(watch.records)
    if number_of_assumptions(mode) != num_assumptions:
        work.guards = (*work.guards, *traced.late_shape_guards())
    return replace(traced, graph=watch.module)


def _fake_input(i: GraphInput) -> Any:
    """Return a new fake value of an input.

    One that requires grad is no leaf, so that it may be mutated.
    """
    if not i.is_tensor:
        return i.fake
    fresh = fake_at_entry(i)
    if not i.requires_grad:
        return torch.empty_strided(fresh.shape, fresh.stride(), dtype=fresh.dtype, device=fresh.device)
    with torch.enable_grad():
        return fresh.detach().requires_grad_().clone()


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
    return watched_run(restoring_inputs(eager_run(traced.graph), traced), traced.graph.graph)


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
    switches = traced.graph.graph.find_nodes(op="call_method", target="requires_grad_")
    lifted = lift_requires_grad(traced.graph) if switches else None
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
    return watched_run(restoring_inputs(compile_externally(options, traced, work), traced), traced.graph.graph)


def _first_user_stack(traced: TracedGraph) -> tuple[Span, ...]:
    """Return the user's stack at the first operation of a graph."""
    return next((stack for node in traced.graph.graph.nodes if (stack := provenance_of(node).stack)), ())
