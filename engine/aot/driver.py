"""Run the AOT stage on one traced graph: analyze, functionalize, lower, wrap, record.

Types in the order in which the steps make them:

- ``TracedCall``: the traced graph and its inputs. ``compile_graph`` makes it; the outer wrappers change it.
- ``FunctionalGraph``: ATen graph without mutation and its metadata, from ``functionalize``.
- ``JointGraph``: functional forward and backward in one graph, from ``trace_joint``.
- ``PartitionedGraphs``: one graph for the forward and one for the backward, from ``partition_joint_graph``.
- ``TrainingArtifact``: a joint graph, its two parts and the eager rerun for double backward.
- ``AotArtifact``: what the disk cache stores: a ``FunctionalGraph`` or a ``TrainingArtifact``.
- ``TracedArtifact``: an artifact with the outer wrappers and the guards, not lowered yet.
- ``FunctionalCall``: metadata of a functional graph, from which the inner wrappers are built.
- ``AotGraph``: input of the lowering: one graph (inference, forward or backward) and its fake inputs.
- ``AotResult``: the compiled call with its wrappers, guards and record.
"""

from __future__ import annotations

import functools
import operator
import pathlib
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import sympy
import torch
import torch.fx

from engine.aot.autograd_function_metadata import build_autograd_metadata
from engine.aot.checks.as_strided_bounds import storage_offset_guards
from engine.aot.checks.base import CheckedCall
from engine.aot.checks.eligibility import why_not_functional
from engine.aot.disk_cache.artifact import AotArtifact, TrainingArtifact, cache_location, load_artifact, save_artifact
from engine.aot.fallback_kinds import AotFallback
from engine.aot.functionalize import (
    FunctionalGraph,
    drop_redundant_fixups,
    fake_mode_of,
    functionalize,
    shape_env_guards,
)
from engine.aot.grad_mode import Mode, needs_autograd, run_in_mode, strip_enclosing_mode
from engine.aot.joint import JointGraph, trace_joint
from engine.aot.partitioner.partition import (
    PartitionedGraphs,
    PartitionMethod,
    inputs_unused_by_backward,
    partition_joint_graph,
)
from engine.aot.to_records import graph_records, metadata_to_records
from engine.aot.wrappers import effect_order, error_fallback, synthetic_bases, tensor_subclasses
from engine.aot.wrappers.base import FunctionalCall, TracedCall, WrapperStack, apply_pre_compile
from engine.aot.wrappers.double_backward import make_eager_rerun
from engine.aot.wrappers.lazy_backward import LazyBackward
from engine.aot.wrappers.node_statistics import node_statistics
from engine.aot.wrappers.order import FUNCTIONAL_CALL_WRAPPERS, TRACED_CALL_WRAPPERS
from engine.aot.wrappers.value_probe import ValueProbe, probe_for
from engine.errors import named_error_line
from engine.graph.passes import choose_conv_layout
from engine.graph.passes.merge_collectives import merge_collectives, waits_for_ranks
from engine.graph.passes.recorder import EDIT_DIGEST_KEY, PASS_RECORDS_KEY, PassRecorder
from engine.graph.user_passes.aten_stage import run_aten_passes
from engine.graph.user_passes.read_graph import graph_digest, lines_of
from engine.ir.aot.aot_graph import KERNEL_GAIN_ATTR, AotGraph
from engine.ir.aot.aot_metadata import AotMetadata
from engine.ir.current_session import current_session
from engine.ir.fallback import Fallback, FallbackRequired
from engine.ir.graph_callable import Run
from engine.ir.guards.base import Cause, Guard
from engine.ir.guards.global_state import GlobalStateMatch
from engine.ir.pass_set import PassSet
from engine.ir.sources.roots import ConstantSource
from engine.ir.traced_frame import GraphInput
from engine.records.aot import AotRecord
from engine.records.graph import GraphRecord
from engine.torch_private.entries import Feature, require

Lower = Callable[[AotGraph], Run]


ProbedRun = Callable[[ValueProbe], Run]


_CALLS_PER_VIEW = 2
"""Calls that take as long as to regenerate a view of a result."""


ANOMALY_GUARD = GlobalStateMatch(
    ConstantSource(torch, "torch"),
    "anomaly",
    True,
    cause=Cause(reason="anomaly mode checks the gradient of each operator"),
)


@dataclass(frozen=True)
class AotResult:
    """Compiled call: ``run(*inputs)`` returns the traced graph's outputs as a tuple.

    ``graphs`` is filled only while a session records; the traced graph comes first.
    """

    run: Run
    record: AotRecord
    graphs: tuple[GraphRecord, ...] = ()
    guards: tuple[Guard, ...] = ()
    """Guards on the inputs beyond those that tracing found."""
    run_with_probe: ProbedRun | None = None
    """Builds a second run of the call, through ATen, that records its values in a probe.

    None if no session records, or if the call has effects and must not run twice.
    """
    runs_as_traced: bool = False
    """The traced graph runs in place of a functional graph without kernels."""


@dataclass(frozen=True)
class AotSettings:
    """Settings of the AOT stage.

    ``lower`` compiles a functional graph; ``lower_to_aten`` runs it through ATen; ``partition_method`` splits the joint
    graph into forward and backward.
    """

    lower: Lower
    lower_to_aten: Lower
    partition_method: PartitionMethod = "min-cut"
    recompute_random: bool = False
    """The backward may recompute random numbers instead of saving them."""
    cache_dir: pathlib.Path | None = None
    """Directory of the disk cache; None disables it."""
    take_assumption_guards: Callable[[], tuple[Guard, ...]] | None = None
    """Takes the guards for new assumptions about symbolic sizes.

    None if the guards are already fixed, so that nothing more may be assumed.
    """
    passes: PassSet = PassSet()
    """Passes that the user registered."""
    chooses_layouts: bool = False
    """Convolutions on a GPU may run in another memory layout than in eager."""
    record_eager_calls: Callable[[str], None] | None = None
    """Records why later calls run under eager autograd."""


def compile_graph(
    graph: torch.fx.GraphModule,
    inputs: Sequence[GraphInput],
    *,
    compilation: str,
    settings: AotSettings,
    changes_objects: bool = False,
    reruns_after_error: bool = False,
    autograd_uses_after_break: str = "",
) -> AotResult:
    """Functionalize ``graph`` and compile it, with its backward if gradients are needed.

    A graph that cannot be functionalized runs as traced, under eager autograd if needed; the record has the reason.
    Errors of ``settings.lower`` propagate. ``TracedGraph`` documents the last three parameters.
    """
    traced = graph_records((graph, "fx", "FX graph"), compilation=compilation)
    trains = needs_autograd(graph, inputs)
    if (stripped := strip_enclosing_mode(graph, inputs, trains=trains)) is not None:
        inside, mode = stripped
        with mode():
            result = compile_graph(
                inside,
                inputs,
                compilation=compilation,
                settings=settings,
                changes_objects=changes_objects,
                reruns_after_error=reruns_after_error,
                autograd_uses_after_break=autograd_uses_after_break,
            )
        return replace(_enter_mode(result, mode), graphs=(*traced, *result.graphs[1:]))
    call = TracedCall(graph, tuple(inputs), reruns_after_error)
    try:
        functional = _functionalize_call(
            call, compilation, settings, trains, changes_objects, autograd_uses_after_break
        )
    except FallbackRequired as error:
        result = _eager_result(graph, error.fallback, trains=trains)
    else:
        result = _lower_call(functional, compilation, settings, trains=trains)
    return replace(result, graphs=(*traced, *result.graphs))


def _enter_mode(result: AotResult, mode: Mode) -> AotResult:
    """Make each run of a compiled call enter the mode that was taken out of its graph."""
    with_probe = result.run_with_probe
    return replace(
        result,
        run=run_in_mode(result.run, mode),
        run_with_probe=None if with_probe is None else lambda probe: run_in_mode(with_probe(probe), mode),
    )


@dataclass(frozen=True)
class TracedArtifact:
    """The functional graphs of one call with its outer wrappers, not lowered yet."""

    artifact: AotArtifact
    wrapped: WrapperStack[TracedCall]
    guards: tuple[Guard, ...]
    cache_note: str


def _functionalize_call(
    traced: TracedCall,
    compilation: str,
    settings: AotSettings,
    trains: bool,
    changes_objects: bool,
    autograd_uses_after_break: str,
) -> TracedArtifact:
    """Run ``pre_compile`` of the outer wrappers and the checks; trace the functional graphs.

    Raises:
        FallbackRequired: the call must run as traced.
    """
    graph, inputs = traced.graph, traced.inputs
    mode = fake_mode_of(graph, inputs)
    assumption_count = len(shape_env_guards(mode))
    try:
        require(Feature.FUNCTIONAL_GRAPHS)
        wrapped = apply_pre_compile(TRACED_CALL_WRAPPERS, traced)
        call = wrapped.call
        checked = CheckedCall(call.graph, call.inputs, graph, trains, changes_objects, autograd_uses_after_break)
        if fallback := why_not_functional(checked):
            raise FallbackRequired(fallback.kind, fallback.reason, fallback.node)
        artifact, note = _load_or_trace(call, compilation, settings, trains=trains)
        assumed = _assumption_guards(shape_env_guards(mode)[assumption_count:], settings)
    except FallbackRequired:
        raise
    except Exception as error:  # if tracing to ATen fails, the user's code must still run
        reason = f"it cannot be traced to ATen ({named_error_line(error)})"
        raise FallbackRequired(AotFallback.CANNOT_TRACE, reason) from error
    offsets = storage_offset_guards(graph, inputs) if checked.addresses_storage or call is not traced else ()
    return TracedArtifact(artifact, wrapped, (*wrapped.guards(), *offsets, *assumed), note)


def _lower_call(functional: TracedArtifact, compilation: str, settings: AotSettings, *, trains: bool) -> AotResult:
    artifact, wrapped = functional.artifact, functional.wrapped
    settings = replace(settings, take_assumption_guards=None)  # it references the call's tensors; the backward must not
    result = (
        _build_training(artifact, wrapped, compilation, settings)
        if isinstance(artifact, TrainingArtifact)
        else _build_inference(artifact, wrapped, compilation, settings, trains)
    )
    return replace(result, record=replace(result.record, cache=functional.cache_note), guards=functional.guards)


def _load_or_trace(
    call: TracedCall, compilation: str, settings: AotSettings, *, trains: bool
) -> tuple[AotArtifact, str]:
    """Load the functional graphs of a call from the disk cache, or trace them.

    Also returns the record's note about the cache.
    """
    if settings.cache_dir is None:
        return _trace_artifact(call, compilation, settings, trains=trains), ""
    if reason := settings.passes.why_not_on_disk:
        return _trace_artifact(call, compilation, settings, trains=trains), f"not saved to disk: {reason}"
    layouts = settings.chooses_layouts
    key_settings = (settings.partition_method, settings.recompute_random, settings.passes.key, layouts)
    location = cache_location(call, settings.cache_dir, trains=trains, settings=key_settings)
    artifact, note = load_artifact(location, call, compilation, loads_joint=current_session() is not None)
    if artifact is not None:
        return artifact, note
    artifact = _trace_artifact(call, compilation, settings, trains=trains)
    save_note = save_artifact(location, artifact, call)
    return artifact, note or save_note


def _assumption_guards(relations: Sequence[sympy.Basic], settings: AotSettings) -> tuple[Guard, ...]:
    """Return guards for the size assumptions that tracing to ATen added.

    Raises:
        FallbackRequired: the guards are already fixed and do not check these assumptions.
    """
    if not relations:
        return ()
    if settings.take_assumption_guards is None:
        more = f" and {len(relations) - 3} more" if len(relations) > 3 else ""
        assumptions = f"{', '.join(map(str, relations[:3]))}{more}"
        raise FallbackRequired(
            AotFallback.CANNOT_TRACE, f"its ATen graph assumes {assumptions}, which the guards do not check"
        )
    return settings.take_assumption_guards()


def _trace_artifact(call: TracedCall, compilation: str, settings: AotSettings, *, trains: bool) -> AotArtifact:
    if not trains:
        functional = functionalize(call.graph, call.inputs, compilation)
        functional = replace(functional, module=_rewrite(functional.module, settings, trains=False))
        return replace(functional, metadata=_with_effects(functional.metadata, functional.module))
    joint = trace_joint(call.graph, call.inputs, compilation)
    joint = replace(joint, module=_rewrite(joint.module, settings, trains=True))
    joint = replace(joint, metadata=_with_effects(joint.metadata, joint.module))
    if not joint.differentiable_results:
        return FunctionalGraph(joint.module, joint.inputs, drop_redundant_fixups(joint.metadata, joint.module))
    rerun = make_eager_rerun(call.graph, joint)
    is_parameter = [isinstance(i.example_value, torch.nn.Parameter) for i in call.inputs]
    halves = partition_joint_graph(
        joint, is_parameter, settings.partition_method, recompute_random=settings.recompute_random
    )
    _check_versions_of_saved_inputs(joint, halves)
    effect_order.check_effect_order(joint.module, (halves.forward, halves.backward), f"joint graph of {compilation}")
    return TrainingArtifact(joint, halves, rerun)


def _rewrite(module: torch.fx.GraphModule, settings: AotSettings, *, trains: bool) -> torch.fx.GraphModule:
    """Return a functional or joint graph after the passes of the user and of the engine."""
    if settings.passes.passes:
        module = run_aten_passes(module, settings.passes)
    if current_session() is not None:
        module.meta[EDIT_DIGEST_KEY] = graph_digest(lines_of(module))
    lays_out = settings.chooses_layouts and choose_conv_layout.gains_from_channels_last(module.graph, trains=trains)
    merges = not trains and waits_for_ranks(module)
    if not lays_out and not merges:
        return module
    watch = PassRecorder(module)
    if lays_out:
        with watch.record_pass("choose_conv_layout"):
            watch.module = choose_conv_layout.choose_conv_layout(watch.module, trains=trains)
    if merges:
        with watch.record_pass("merge_collectives"):
            merge_collectives(watch.module)
        watch.module.recompile()
    watch.module.meta[PASS_RECORDS_KEY] = (*watch.module.meta.get(PASS_RECORDS_KEY, ()), *watch.records)
    return watch.module


def _with_effects(metadata: AotMetadata, module: torch.fx.GraphModule) -> AotMetadata:
    return replace(metadata, effectful_ops=effect_order.effectful_ops(module))


def _eager_result(graph: torch.fx.GraphModule, fallback: Fallback, *, trains: bool) -> AotResult:
    """Return the graph as traced, with the reason in the record."""
    mode = "under eager autograd" if trains else "as traced"
    record = AotRecord(
        "training" if trains else "eager", note=f"runs {mode}: {fallback.reason}", fallback=fallback.to_record()
    )
    guards = (ANOMALY_GUARD,) if fallback.kind is AotFallback.ANOMALY_MODE else ()
    return AotResult(types.MethodType(type(graph).forward, graph), record, guards=guards)


def _build_inference(
    functional: FunctionalGraph,
    wrapped: WrapperStack[TracedCall],
    compilation: str,
    settings: AotSettings,
    trains: bool,
) -> AotResult:
    """Build a call without a backward.

    ``trains``: the call needed autograd, but no result requires grad.
    """
    graphs = graph_records((functional.module, "aten", "functional ATen graph"), compilation=compilation)
    graph = AotGraph(
        functional.module,
        functional.inputs,
        compilation,
        mutated_inputs=_inputs_to_write(functional.metadata),
        passes=settings.passes,
    )
    call = FunctionalCall(functional.metadata, _eager_run(wrapped), requires_grad=trains)
    record = AotRecord("inference", metadata_to_records(functional.metadata))
    return _wrap_call(call, wrapped, graph, settings, AotResult(graph.module, record, graphs))


def _check_versions_of_saved_inputs(joint: JointGraph, halves: PartitionedGraphs) -> None:
    """Raise if a saved input gets a new version, but no new data.

    The compiled call saves the input at its version before the call; eager saves it at a later version. If the data
    changes too, a copy of the original data is saved instead of the input.
    """
    saved = set(halves.saved_tensor_names)
    placeholders = [n.name for n in halves.forward.graph.nodes if n.op == "placeholder"]
    for name, i in zip(placeholders, joint.metadata.inputs, strict=False):
        if name in saved and i.version_bumps and not i.is_mutated:
            raise FallbackRequired(
                AotFallback.VERSION_BUMP_OF_SAVED_INPUT,
                f"an in-place operation changes {i.name}, which is saved for the backward, but not its data",
            )


def _build_training(
    artifact: TrainingArtifact, wrapped: WrapperStack[TracedCall], compilation: str, settings: AotSettings
) -> AotResult:
    """Build a call with a backward, which is lowered when it is first needed."""
    joint, halves = artifact.joint, artifact.partitioned
    graphs = graph_records(
        (joint.module, "joint", "joint graph: forward and backward"),
        (halves.forward, "forward", "forward graph"),
        (halves.backward, "backward", "backward graph"),
        compilation=compilation,
    )
    if (change := wrapped.result_of(tensor_subclasses)) is not None:
        tensor_subclasses.mark_unsaved_inputs(change, inputs_unused_by_backward(halves))
    inputs_are_callers = all(wrapped.result_of(w) is None for w in (tensor_subclasses, synthetic_bases))
    requires_grad_inputs = [n for n, i in enumerate(wrapped.call.inputs) if i.requires_grad]
    autograd = build_autograd_metadata(joint, halves, requires_grad_inputs, inputs_are_callers=inputs_are_callers)
    backward = LazyBackward(
        halves.backward,
        autograd,
        compile=lambda g: settings.lower(
            replace(_backward_graph(g, compilation, len(halves.saved_fakes)), passes=settings.passes)
        ),
        compile_to_aten=lambda g: settings.lower_to_aten(_backward_graph(g, compilation, len(halves.saved_fakes))),
        rerun=artifact.rerun,
        describe=lambda values: node_statistics(
            _backward_graph(halves.backward, compilation, len(halves.saved_fakes)), values
        ),
        record_eager_calls=settings.record_eager_calls,
    )
    # The autograd.Function corrects version counters and views of its results before it saves them.
    metadata = replace(joint.metadata, result_version_bumps=(), results_as_views=frozenset())
    call = FunctionalCall(metadata, _eager_run(wrapped), requires_grad=True, autograd=autograd, backward=backward)
    record = AotRecord("training", metadata_to_records(joint.metadata), partition=halves.record)
    return _wrap_call(
        call,
        wrapped,
        replace(_forward_graph(artifact, compilation), passes=settings.passes),
        settings,
        AotResult(halves.forward, record, graphs),
    )


def _wrap_call(
    call: FunctionalCall, wrapped: WrapperStack[TracedCall], graph: AotGraph, settings: AotSettings, result: AotResult
) -> AotResult:
    """Lower a graph and put all wrappers around it; return ``result`` with run and record.

    The run with a probe, through ATen, is built only when it is needed.
    """
    outer = wrapped.without_real_inputs()

    run, probe = settings.lower(graph), probe_for(graph.compilation_id) if result.graphs else None
    may_run_as_traced = probe is None and _may_run_as_traced(wrapped.call.graph, call.metadata, settings)
    gain = getattr(run, KERNEL_GAIN_ATTR, None) if may_run_as_traced else None
    if call.backward is not None:
        call.backward.forward_gain = gain
    has_no_gain = gain == 0.0 and not call.requires_grad
    runs_as_traced = has_no_gain and _is_traced_as_fast(wrapped.call.graph, graph, call.metadata)

    unprobed = apply_pre_compile(FUNCTIONAL_CALL_WRAPPERS, call)

    def wrap(run: Run, call: FunctionalCall, probe: ValueProbe | None) -> Run:
        """Put the inner wrappers around ``run``, then the outer ones."""
        probed = call.probed_by(probe)
        inner = unprobed if probed is unprobed.original else apply_pre_compile(FUNCTIONAL_CALL_WRAPPERS, probed)
        if probe is not None and not call.metadata.effectful_ops:
            run = probe.wrap_graph(run, functools.partial(node_statistics, graph))
        return outer.apply_post_compile(inner.apply_post_compile_at_once(run, probe), probe)

    def run_with_probe(probe: ValueProbe) -> Run:
        return wrap(settings.lower_to_aten(graph), call.through_aten(), probe)

    wrappers = (*wrapped.records(), *unprobed.records())
    has_probe = not call.metadata.effectful_ops and bool(result.graphs)
    return replace(
        result,
        run=outer.apply_post_compile(call.run_eager) if runs_as_traced else wrap(run, call, probe),
        record=replace(result.record, wrappers=wrappers),
        runs_as_traced=runs_as_traced,
        run_with_probe=run_with_probe if has_probe else None,
    )


def _may_run_as_traced(graph: torch.fx.GraphModule, metadata: AotMetadata, settings: AotSettings) -> bool:
    """Return True if the traced graph has no side effects, bodies or rewrites of the user."""
    is_pure = not metadata.effectful_ops and not any(i.is_mutated or i.version_bumps for i in metadata.inputs)
    has_bodies = next(graph.children(), None) is not None
    return is_pure and not has_bodies and not settings.passes.passes and not settings.passes.kernel_edits


def _is_traced_as_fast(traced: torch.fx.GraphModule, graph: AotGraph, metadata: AotMetadata) -> bool:
    """Return True if the traced graph makes at most as many calls as the functional graph.

    Views of results, which the functional graph leaves to its wrapper, count as calls of it.
    """
    counts = [
        sum(n.op.startswith("call") and n.target is not operator.getitem for n in module.graph.nodes)
        for module in (traced, graph.module)
    ]
    views = [o.kind for o in metadata.outputs if o.view is not None]
    return "alias of input" not in views and counts[0] <= counts[1] + _CALLS_PER_VIEW * len(views)


def _inputs_to_write(metadata: AotMetadata, excluded: Sequence[int] = ()) -> tuple[tuple[int, int], ...]:
    """Return ``(result index, input index)`` of each mutated input that kernels may write.

    Inputs in ``excluded`` and inputs without a version counter are left out. Without a counter, it would not
    be known after an error if they were written.
    """
    return tuple(
        (i.result_index, n)
        for n, i in enumerate(metadata.inputs)
        if i.is_mutated and i.has_version_counter and i.new_layout is None and n not in excluded
    )


def _eager_run(wrapped: WrapperStack[TracedCall]) -> Run:
    as_traced: Run = types.MethodType(type(wrapped.call.graph).forward, wrapped.call.graph)
    return as_traced if wrapped.result_of(error_fallback) is None else error_fallback.wrap_eager_run(as_traced)


def _forward_graph(artifact: TrainingArtifact, compilation: str) -> AotGraph:
    halves = artifact.partitioned
    saved = tuple(n for n in halves.backward.graph.nodes if n.op == "placeholder")[: len(halves.saved_fakes)]
    return AotGraph(
        halves.forward,
        artifact.joint.inputs,
        compilation,
        "forward",
        num_user_outputs=halves.num_results,
        saved_placeholders=saved,
        mutated_inputs=_inputs_to_write(artifact.joint.metadata, artifact.joint.grad_inputs),
    )


def _backward_graph(module: torch.fx.GraphModule, compilation: str, num_saved: int) -> AotGraph:
    fakes = tuple(n.meta["val"] for n in module.graph.nodes if n.op == "placeholder")
    return AotGraph(module, fakes, compilation, "backward", is_boxed=True, num_saved_inputs=num_saved)
