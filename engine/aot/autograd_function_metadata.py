"""Metadata of the generated autograd.Function: gradients, saved values, tangent layouts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
import torch.fx

from engine.aot.functionalize import drop_redundant_fixups, is_output_of_view_op
from engine.aot.joint import JointGraph
from engine.aot.node_properties import output_args
from engine.aot.partitioner.partition import PartitionedGraphs
from engine.ir.aot.aot_metadata import AotMetadata
from engine.ir.node_metadata import is_backward_node
from engine.ir.node_values import tensor_meta
from engine.ir.static_sizes import static_sizes

TangentLayout = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class AutogradMetadata:
    """Metadata of an autograd node, as positions of the forward's inputs and results.

    The forward graph returns ``num_results`` results, ``num_saved_tensors`` saved tensors and ``num_saved_scalars``
    saved scalars. ``tangent_layouts`` are the sizes and strides that the backward expects of each tangent of
    ``differentiable_results``. None stands for symbolic ones; they equal those of the call's result.
    """

    num_inputs: int
    num_results: int
    tangent_names: tuple[str, ...]
    """Names of the backward graph's placeholders for tangents."""
    num_saved_tensors: int
    num_saved_scalars: int
    differentiable_results: tuple[int, ...]
    non_differentiable_results: tuple[int, ...]
    """Tensor results that do not require grad."""
    grad_inputs: tuple[int, ...]
    tangent_layouts: tuple[TangentLayout | None, ...]
    view_results: tuple[int, ...] = ()
    """Results that the graph computes as views, but eager does not.

    They are detached; otherwise they could not be mutated.
    """
    versioned_inputs: tuple[int, ...] = ()
    """Inputs that have version counters."""
    result_write_counts: tuple[tuple[int, int], ...] = ()
    """Version bumps (``AotMetadata.result_version_bumps``), applied before a result is saved."""
    inputs_without_gradient: tuple[int, ...] = ()
    """Inputs that require grad but get no gradient.

    Autograd must not connect their history to this node.
    """
    detached_saved: tuple[int, ...] = ()
    """Saved tensors that are such inputs, or results of several; they are saved detached."""
    saved_results: frozenset[int] = frozenset()
    """Other saved results; autograd unpacks them only together with all saved tensors."""
    weakref_inputs: tuple[int, ...] = ()
    """Inputs held by weak reference, because eager would free them.

    A rerun (``EagerRerun``) may need them.
    """
    saved_inputs: tuple[tuple[int, int], ...] = ()
    """Saved tensors that are inputs, with the position of the input.

    The caller could detach such an input in place before eager reads it.
    """
    written_inputs: tuple[tuple[int, int], ...] = ()
    """Mutated inputs, each with the result that is its new value.

    The result requires no grad, and nothing else reads it. Kernels may write such an input in place and return it.
    """

    @property
    def tracks_freed_tangents(self) -> bool:
        """True if the node must record which tangents were already defined.

        Torch only knows if all saved tensors of a node are freed.
        """
        return len(self.differentiable_results) > 1 or not self.num_saved_tensors


def build_autograd_metadata(
    joint: JointGraph, halves: PartitionedGraphs, requires_grad_inputs: Collection[int], *, inputs_are_callers: bool
) -> AutogradMetadata:
    """Build the autograd node's metadata from a joint graph and its partitioned graphs.

    ``requires_grad_inputs`` are positions of inputs. ``inputs_are_callers``: the inputs are the caller's tensors, not
    tensors derived from them.
    """
    outputs = output_args(halves.forward.graph)
    tensors = [k for k, n in enumerate(outputs[: halves.num_results]) if tensor_meta(n) is not None]
    with_gradient = {
        n for n, g in zip(joint.grad_inputs, output_args(halves.backward.graph), strict=True) if g is not None
    }
    without_gradient = tuple(sorted(set(requires_grad_inputs) - with_gradient)) if with_gradient else ()
    detached_names = {n.name for k, n in enumerate(halves.forward.graph.nodes) if k in without_gradient}
    result_names = {str(n) for n in outputs[: halves.num_results]}
    if len(joint.differentiable_results) > 1:  # a backward of some of them must read its saved tensors alone
        detached_names |= result_names - {n.name for n in halves.forward.graph.nodes if n.op == "placeholder"}
    positions = (
        {n.name: k for k, n in enumerate(halves.forward.graph.nodes) if k in with_gradient}
        if inputs_are_callers
        else {}
    )
    saved_by_eager = _saved_by_eager(halves.backward)
    return AutogradMetadata(
        num_inputs=len(joint.inputs),
        num_results=halves.num_results,
        tangent_names=halves.tangent_names,
        num_saved_tensors=len(halves.saved_tensor_names),
        num_saved_scalars=len(halves.saved_scalar_names),
        differentiable_results=joint.differentiable_results,
        non_differentiable_results=tuple(k for k in tensors if k not in joint.differentiable_results),
        grad_inputs=joint.grad_inputs,
        tangent_layouts=tuple(map(_layout, halves.tangent_fakes)),
        versioned_inputs=tuple(n for n, i in enumerate(joint.metadata.inputs) if i.is_tensor and i.has_version_counter),
        view_results=tuple(k for k in tensors if is_output_of_view_op(outputs[k])),
        result_write_counts=drop_redundant_fixups(joint.metadata, halves.forward).result_version_bumps,
        inputs_without_gradient=without_gradient,
        detached_saved=tuple(n for n, name in enumerate(halves.saved_tensor_names) if name in detached_names),
        saved_results=frozenset(
            n for n, name in enumerate(halves.saved_tensor_names) if name in result_names - detached_names
        ),
        weakref_inputs=tuple(n for n, i in enumerate(joint.metadata.inputs) if i.is_tensor and inputs_are_callers),
        saved_inputs=tuple(
            (n, positions[name])
            for n, name in enumerate(halves.saved_tensor_names)
            if name in positions
            and name in saved_by_eager
            and not isinstance(joint.inputs[positions[name]], torch.nn.Parameter)
        ),
        written_inputs=_written_inputs(joint.metadata, joint.differentiable_results),
    )


def _written_inputs(plan: AotMetadata, differentiable: Collection[int]) -> tuple[tuple[int, int], ...]:
    """Return mutated inputs and their result.

    Only those whose result requires no grad and has no other use.
    """
    outputs = (*plan.outputs, *plan.detached_bases)
    read = {o.index for o in outputs if o.kind not in ("input", "alias of input", "constant")}
    read |= {n for n, *_ in (*plan.result_version_bumps, *plan.result_strides, *plan.freed_results)}
    read |= {*differentiable, *plan.results_as_views}
    return tuple(
        (n, i.result_index)
        for n, i in enumerate(plan.inputs)
        if i.is_mutated and i.has_version_counter and i.result_index not in read
    )


def _saved_by_eager(backward: torch.fx.GraphModule) -> set[str]:
    """Return names of saved values that autograd's own operators read: what eager saves.

    Readers that are views or recomputed nodes do not count.
    """
    return {n.name for n in backward.graph.nodes if n.op == "placeholder" and any(map(is_backward_node, n.users))}


def _layout(tangent: torch.Tensor) -> TangentLayout | None:
    size, stride = tuple(tangent.shape), tangent.stride()
    return (size, stride) if static_sizes((*size, *stride)) is not None else None
