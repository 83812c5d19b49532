"""Trace a graph with its backward: from inputs and tangents to results and gradients.

Tracing autograd's own backward over functional fake tensors is the idea of AOTAutograd's joint graph.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from engine.aot.backward_provenance import BackwardProvenance, proxy_node
from engine.aot.fallback_kinds import AotFallback
from engine.aot.functional_tensors import functional_tensors, unwrap_functional
from engine.aot.functionalize import (
    FunctionalInterpreter,
    FunctionalTracer,
    copy_with_provenance,
    fake_mode_of,
    trace_functional,
)
from engine.aot.gradients.autograd_calls import calls_autograd, freed_result
from engine.aot.gradients.custom_function_outputs import find_function_with_undefined_grads
from engine.aot.layout_mutation import is_layout_mutated
from engine.aot.node_properties import dependents_of, may_mutate
from engine.aot.storage_geometry import is_disjoint, storage_id
from engine.graph.effect_tokens import set_mode_tokens
from engine.graph.passes.eliminate_dead_code import eliminate_dead_code
from engine.graph.passes.recorder import PASS_RECORDS_KEY, PassRecorder
from engine.graph.passes.remove_noop_aliases import remove_noop_aliases
from engine.graph.verify import FUNCTIONAL_RULES, verify_graph
from engine.ir.aot.aot_metadata import AotMetadata
from engine.ir.fallback import FallbackRequired
from engine.ir.introspection.operator_facts import facts_of_node
from engine.ir.node_metadata import NodeProvenance, provenance_of, set_provenance
from engine.ir.node_values import tensors_by_position
from engine.ir.traced_frame import GraphInput
from engine.torch_private.autograd import DisableAutocast, get_sequence_nr, set_grad_enabled
from engine.torch_private.dispatch import is_traceable_wrapper_subclass
from engine.torch_private.fake_tensors import FakeTensor
from engine.torch_private.functionalization import FunctionalTensor, FunctionalTensorMode
from engine.torch_private.fx import disable_proxy_modes_tracing, get_proxy_mode, track_tensor_tree
from engine.torch_private.operators import is_non_overlapping_and_dense_or_false


@dataclass(frozen=True)
class JointGraph:
    """Joint graph: placeholders are the inputs, then one tangent per differentiable result.

    It returns ``metadata.num_results`` results, then one gradient per position in ``grad_inputs`` (None: undefined).
    """

    module: torch.fx.GraphModule
    inputs: tuple[Any, ...]
    metadata: AotMetadata
    differentiable_results: tuple[int, ...]
    """Positions of results that gradients flow back from."""
    grad_inputs: tuple[int, ...]
    """Positions of inputs whose gradients the graph returns."""
    result_fakes: tuple[tuple[Any, int], ...] = ()
    """Traced fake values that the results hold, each with the position of its result."""


def trace_joint(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput], compilation: str) -> JointGraph:
    """Trace ``graph`` and its backward to functional ATen, in the grad mode of the caller.

    Symbolic sizes stay symbolic.

    Raises:
        FallbackRequired: see ``functionalize``; or gradients would flow differently than in eager.
        GraphVerificationError: the resulting graph violates a rule.
    """
    changed = next((i.name for i in inputs if i.is_tensor and is_layout_mutated(i.fake, i.example_value)), None)
    if changed is not None:
        raise FallbackRequired(
            AotFallback.LAYOUT_MUTATION_NEEDS_GRAD,
            f"an in-place operation changes the shape or strides of {changed}, and gradients are needed",
        )
    if not torch.is_grad_enabled():
        raise FallbackRequired(
            AotFallback.GRAD_MODE_ENABLED_INSIDE, "the call runs under no_grad and enables grad mode inside"
        )
    tracing = _JointTracer(copy_with_provenance(graph, compilation), inputs, fake_mode_of(graph, inputs))
    with torch.autograd.set_multithreading_enabled(False):
        module, fakes, plan = trace_functional(tracing, graph, inputs)
    _move_tangents_to_inputs(module, len(inputs))
    _drop_unused_statistics(module)
    watch = PassRecorder(module)
    with watch.record_pass("remove_noop_aliases"):
        remove_noop_aliases(module)
    with watch.record_pass("eliminate_dead_code"):
        eliminate_dead_code(module)
    module.meta[PASS_RECORDS_KEY] = (*module.meta.get(PASS_RECORDS_KEY, ()), *watch.records)
    module.recompile()
    verify_graph(module, FUNCTIONAL_RULES, f"joint graph of {compilation}")
    if any(n.target is torch.ops.aten.mkldnn_rnn_layer.default for n in module.graph.nodes):
        # Over fake tensors it returns no workspace, which its backward reads.
        raise FallbackRequired(
            AotFallback.CANNOT_TRACE, "a recurrent layer under autocast has no backward outside of eager"
        )
    for i in (plan.inputs[n] for n in tracing.grad_inputs):
        if i.version_bumps and not i.is_mutated:
            # Eager forbids this for leaves. There is no data to copy back, so nothing else would raise.
            raise FallbackRequired(
                AotFallback.VERSION_BUMP_NEEDS_GRAD,
                f"an in-place operation changes {i.name}, which requires grad, but not its data",
            )
    return JointGraph(module, fakes, plan, tracing.differentiable_results, tracing.grad_inputs, tracing.result_fakes)


def _drop_unused_statistics(module: torch.fx.GraphModule) -> None:
    """Remove running statistics from backwards of batch norm that use the batch's.

    Otherwise the new statistics would be saved for backward.
    """
    norm = torch.ops.aten.native_batch_norm_backward.default
    for node in module.graph.find_nodes(op="call_function", target=norm):
        if len(node.args) > 7 and node.args[7] is True:
            node.args = (*node.args[:3], None, None, *node.args[5:])


class _NonLeafAlias(torch.autograd.Function):
    """Alias of a graph input that is not a leaf, so that it may be mutated in place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return x.detach()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return grads[0]


class _SequenceNrInterpreter(FunctionalInterpreter):
    """Interpreter that records autograd's sequence number at each node.

    The numbers map a backward operator to its forward node.
    """

    under_autograd = True

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        super().__init__(graph)
        self.sequence_nrs: list[int] = []
        self.provenances: list[NodeProvenance] = []

    def run_node(self, n: torch.fx.Node) -> Any:
        self.sequence_nrs.append(get_sequence_nr())
        self.provenances.append(provenance_of(n))
        listed = self.fetch_args_kwargs_from_env(n)[0][0] if facts_of_node(n).counts_list_writes else ()
        versions = [t._version for t in listed]
        result = super().run_node(n)
        # Mutating functional tensors in a list bumps no version, so autograd would miss that saved tensors changed.
        if uncounted := [t for t, v in zip(listed, versions, strict=True) if t._version == v]:
            torch.autograd.graph.increment_version(uncounted)
        return result

    def provenance_of(self, number: int) -> NodeProvenance | None:
        """Return the provenance of the node that ran when autograd issued this sequence number."""
        position = bisect.bisect_right(self.sequence_nrs, number) - 1
        return self.provenances[position] if position >= 0 else None


class _JointTracer(FunctionalTracer):
    """One run of the graph over functional tensors under autograd, then of its backward."""

    def __init__(self, graph: torch.fx.GraphModule, inputs: Sequence[GraphInput], mode: Any) -> None:
        super().__init__(graph, inputs)
        self._mode = mode
        self._mutates = any(map(may_mutate, graph.graph.nodes))
        self._differentiates = calls_autograd(graph)
        self._interpreter = _SequenceNrInterpreter(graph)
        self.differentiable_results: tuple[int, ...] = ()
        self.grad_inputs = tuple(n for n, i in enumerate(inputs) if i.requires_grad)

    def make_interpreter(self) -> FunctionalInterpreter:
        return self._interpreter

    def graph_arguments(self, originals: list[Any]) -> list[Any]:
        arguments = list(originals)
        for n in self.grad_inputs:
            originals[n].requires_grad_(True)
            if self._mutates:
                arguments[n] = _NonLeafAlias.apply(originals[n])  # type: ignore[no-untyped-call, unused-ignore]
        self._grad_fns_at_entry = {n: arguments[n].grad_fn for n in self.grad_inputs}
        self._graph_args = arguments
        return arguments

    def run(self, *args: Any) -> tuple[Any, ...]:
        grad = torch.is_grad_enabled()
        results, sources, originals = self.trace_results(args)
        set_grad_enabled(grad)
        self.mutations_hidden_from_autograd = frozenset(
            n for n in self._mutated_results if n in self._grad_fns_at_entry and self._mutation_hidden_from_autograd(n)
        )
        assert self._outputs is not None
        hidden = {
            self._mutated_results[n] for n in self.mutations_hidden_from_autograd
        } | self._outputs.detached_results
        self.differentiable_results = tuple(
            k for k, s in tensors_by_position(sources).items() if s.requires_grad and k not in hidden
        )
        self._check_requires_grad()
        if self._differentiates:
            self._take_freed_results(sources, [originals[n] for n in self.grad_inputs])
        if not self.differentiable_results:
            return results
        if name := find_function_with_undefined_grads([sources[k] for k in self.differentiable_results]):
            raise FallbackRequired(
                AotFallback.UNDEFINED_GRADIENT_SEEN,
                f"the backward of {name} sees which of its outputs have an undefined gradient, and this may differ between calls",
            )
        watched = [
            *zip((i.name for i in self._inputs), self._graph_args, strict=True),
            *(("an output", s) for s in sources),
        ]
        before = [_functional_state(value) for _, value in watched]
        gradients = self._trace_backward(results, sources, [originals[n] for n in self.grad_inputs])
        for (name, value), was in zip(watched, before, strict=True):
            if not _is_unchanged(value, was):
                raise FallbackRequired(AotFallback.CUSTOM_BACKWARD_MUTATES, f"a user-defined backward mutates {name}")
        return (*results, *gradients)

    def _take_freed_results(self, sources: Sequence[Any], leaves: Sequence[torch.Tensor]) -> None:
        """Exclude results whose history the graph has freed: no gradient flows back."""
        assert self._outputs is not None
        attached = {o.index for o in self._outputs.outputs if o.kind == "result"}
        attached -= {o.index for o in self._outputs.outputs if o.kind == "alias of result"}
        attached -= set(self._mutated_results.values())
        freed = {k: freed_result(sources[k], k, leaves, attached) for k in self.differentiable_results}
        self.freed_results = tuple(
            (k, tuple(self.grad_inputs[n] for n in reached)) for k, reached in freed.items() if reached is not None
        )
        self.differentiable_results = tuple(k for k, reached in freed.items() if reached is None)
        if self.differentiable_results and not leaves:
            raise FallbackRequired(
                AotFallback.AUTOGRAD_IN_GRAPH, "an output depends on a leaf that the graph makes, and on no input"
            )

    @property
    def result_fakes(self) -> tuple[tuple[Any, int], ...]:
        """Traced fake values that the results hold (``JointGraph.result_fakes``)."""
        assert self._outputs is not None
        return tuple(self._outputs.results.fakes)

    def _mutation_hidden_from_autograd(self, position: int) -> bool:
        return self._graph_args[position].grad_fn is self._grad_fns_at_entry[position]

    def _check_requires_grad(self) -> None:
        """Raise unless results require grad exactly where eager's do, as the traced fakes show."""
        assert self._outputs is not None
        for fake, position in self._outputs.results.fakes:
            needs = fake.requires_grad and position not in self._outputs.detached_results
            if needs != (position in self.differentiable_results):
                raise FallbackRequired(
                    AotFallback.RESULT_REPRESENTATION_DIFFERS, "requires_grad of an output would differ from eager"
                )

    def _trace_backward(self, results: Sequence[Any], sources: Sequence[Any], leaves: list[Any]) -> list[Any]:
        needed = [sources[k] for k in self.differentiable_results]
        tangents = [self._tangent(n, results[k]) for n, k in enumerate(self.differentiable_results)]
        marks = BackwardProvenance(self._interpreter.provenance_of)
        hooks = list(marks.register_hooks(needed))
        try:
            with FunctionalTensorMode() as mode, DisableAutocast(), torch.no_grad():
                set_mode_tokens(mode)
                functional = [FunctionalTensor.to_functional(t) for t in tangents]
                states = [_functional_state(t) for t in functional]
                gradients = torch.autograd.grad(needed, leaves, functional, allow_unused=True)
                names = [self._inputs[n].name for n in self.grad_inputs]
                marks.finish(dict(zip(names, gradients, strict=True)))
                if not all(map(_is_unchanged, functional, states)):
                    raise FallbackRequired(
                        AotFallback.CUSTOM_BACKWARD_MUTATES,
                        "a user-defined backward mutates a gradient that the caller may hold",
                    )
        finally:
            marks.mark_traced(None)
            for hook in hooks:
                hook.remove()
        if marks.phase_dependent_op:
            raise FallbackRequired(
                AotFallback.GRADIENT_CHECKED_IN_BACKWARD,
                f"the backward of {marks.phase_dependent_op} checks its gradients and may raise an error",
            )
        if len(tangents) > 1:
            self._check_grads_depend_on_tangents(tangents, marks.user_function_grads)
        return _copy_overlaps([self._gradient(n, g) for n, g in zip(self.grad_inputs, gradients, strict=True)])

    def _check_grads_depend_on_tangents(
        self, tangents: Sequence[torch.Tensor], by_users: Sequence[tuple[str, Any]]
    ) -> None:
        """Raise if a user function returns a gradient that does not depend on the tangents.

        It must be undefined in calls where autograd skips that function, and the graph cannot represent this.
        """
        if not by_users:
            return
        proxies = get_proxy_mode()
        assert proxies is not None
        late = dependents_of(proxies.tracer.graph, [n for t in tangents if (n := proxy_node(t)) is not None])
        for name, gradient in by_users:
            if proxy_node(unwrap_functional(gradient)) not in late:
                raise FallbackRequired(
                    AotFallback.CONSTANT_GRADIENT,
                    f"the backward of {name} returns a gradient that does not depend on its inputs, and autograd may skip it in other calls",
                )

    def _gradient(self, position: int, gradient: Any) -> Any:
        for functional in functional_tensors((gradient,)):
            return unwrap_functional(functional)
        if is_traceable_wrapper_subclass(gradient):
            name = self._inputs[position].name
            raise FallbackRequired(
                AotFallback.SUBCLASS_GRADIENT_DIFFERS,
                f"the gradient of {name}, a plain tensor, would be a {type(gradient).__name__}",
            )
        return gradient

    def _tangent(self, number: int, result: torch.Tensor) -> torch.Tensor:
        """Add a tangent input to the graph, with the result's layout if that is dense."""
        proxies = get_proxy_mode()
        assert proxies is not None
        with disable_proxy_modes_tracing(), self._mode:
            if is_non_overlapping_and_dense_or_false(result):
                tangent = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device=result.device)
            else:
                tangent = torch.empty(result.shape, dtype=result.dtype, device=result.device)
        proxy = proxies.tracer.create_proxy("placeholder", f"tangent_{number}", (), {})
        set_provenance(proxy.node, NodeProvenance(note="the gradient of an output"))
        track_tensor_tree(tangent, proxy, constant=None, tracer=proxies.tracer)
        return tangent


def _copy_overlaps(gradients: list[Any]) -> list[Any]:
    """Copy each gradient that shares memory with an earlier one, but is another tensor.

    Autograd stores both in ``grad`` without a copy, and then an update of one in place would change the other.
    """
    earlier: dict[int, list[torch.Tensor]] = {}
    for n, gradient in enumerate(gradients):
        if type(gradient) is FakeTensor:
            over = earlier.setdefault(storage_id(gradient), [])
            if any(gradient is not o and not is_disjoint(gradient, o) for o in over):
                gradients[n] = gradient.clone()
            over.append(gradient)
    return gradients


def _functional_state(value: Any) -> tuple[Any, list[str]] | None:
    """Return the state of a functional tensor that changes when it is mutated in place."""
    states = [(unwrap_functional(t), [str(n) for n in (*t.shape, *t.stride())]) for t in functional_tensors((value,))]
    return states[0] if states else None


def _is_unchanged(value: Any, was: tuple[Any, list[str]] | None) -> bool:
    now = _functional_state(value)
    return was is None or now is None or (was[0] is now[0] and was[1] == now[1])


def _move_tangents_to_inputs(module: torch.fx.GraphModule, inputs: int) -> None:
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    for last, node in zip(placeholders[inputs - 1 :], placeholders[inputs:], strict=False):
        if inputs:
            last.append(node)
