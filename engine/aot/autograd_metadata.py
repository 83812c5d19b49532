"""What an autograd node knows of the compiled call that it stands for: which results and inputs gradients flow through, and what is saved."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from engine.aot.functionalize import drop_redundant_fixups, is_output_of_view_op
from engine.aot.joint import JointGraph
from engine.aot.node_properties import output_args
from engine.aot.partitioner.partition import PartitionedGraphs
from engine.ir.node_metadata import is_backward_node

TangentLayout = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class AutogradMetadata:
    """What the autograd node needs to know, in positions of the forward's inputs and results.

    The forward graph returns ``results`` results, ``tensors`` saved tensors and ``numbers`` saved numbers. ``layouts`` are sizes and
    strides that the backward expects of the tangent of each position in ``differentiable``; None where they are symbols, and are those
    of the result of the call.
    """

    num_inputs: int
    num_results: int
    tangent_names: tuple[str, ...]
    """Names of the backward graph's placeholders for tangents."""
    num_saved_tensors: int
    num_saved_scalars: int
    differentiable_results: tuple[int, ...]
    non_differentiable_results: tuple[int, ...]
    """Results that are tensors and need no gradient."""
    grad_inputs: tuple[int, ...]
    tangent_layouts: tuple[TangentLayout | None, ...]
    view_results: tuple[int, ...] = ()
    """Results that the graph computes as views, where eager's tensor is none: or they could not be written to."""
    versioned_inputs: tuple[int, ...] = ()
    """Inputs that have version counters."""
    result_write_counts: tuple[tuple[int, int], ...] = ()
    """``Plan.result_version_bumps``: version counters must be right before a result is saved."""
    inputs_without_gradient: tuple[int, ...] = ()
    """Inputs that require grad, and that no gradient flows to: autograd must not take what they come from for a part of this."""
    detached_saved: tuple[int, ...] = ()
    """Saved tensors that are such inputs: saved without what they come from."""
    saved_results: frozenset[int] = frozenset()
    """Saved tensors that are results as well: autograd gives them back together with all others only."""
    weakref_inputs: tuple[int, ...] = ()
    """Inputs that the node must not keep alive: it may ask for them once more (``Again``), but eager's would have let go of them."""
    saved_inputs: tuple[tuple[int, int], ...] = ()
    """Saved tensors with the inputs that they are, where the caller could take them out of autograd's graph before eager reads them."""

    @property
    def tracks_freed_tangents(self) -> bool:
        """Whether it must be known which tangents have come: torch only knows that a node's saved tensors are freed, all of them."""
        return len(self.differentiable_results) > 1 or not self.num_saved_tensors


def build_autograd_metadata(
    joint: JointGraph, halves: PartitionedGraphs, requiring: Collection[int], *, is_given: bool
) -> AutogradMetadata:
    """What a joint graph and its halves mean for the autograd node.

    ``requiring`` are the inputs that require grad. ``is_given``: the inputs are the caller's, not made of them.
    """
    nodes = output_args(halves.forward.graph)
    tensors = [k for k, n in enumerate(nodes[: halves.num_results]) if isinstance(_value(n), torch.Tensor)]
    flowing = {n for n, g in zip(joint.grad_inputs, output_args(halves.backward.graph), strict=True) if g is not None}
    apart = tuple(sorted(set(requiring) - flowing)) if flowing else ()
    names = {n.name for k, n in enumerate(halves.forward.graph.nodes) if k in apart}
    shown = {str(n) for n in nodes[: halves.num_results]}
    places = {n.name: k for k, n in enumerate(halves.forward.graph.nodes) if k in flowing} if is_given else {}
    read = _saved_by_eager(halves.backward)
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
        view_results=tuple(k for k in tensors if is_output_of_view_op(nodes[k])),
        result_write_counts=drop_redundant_fixups(joint.metadata, halves.forward).result_version_bumps,
        inputs_without_gradient=apart,
        detached_saved=tuple(n for n, name in enumerate(halves.saved_tensor_names) if name in names),
        saved_results=frozenset(n for n, name in enumerate(halves.saved_tensor_names) if name in shown),
        weakref_inputs=tuple(n for n, i in enumerate(joint.metadata.inputs) if i.is_tensor and is_given),
        saved_inputs=tuple(
            (n, places[name])
            for n, name in enumerate(halves.saved_tensor_names)
            if name in places and name in read and not isinstance(joint.inputs[places[name]], torch.nn.Parameter)
        ),
    )


def _saved_by_eager(backward: torch.fx.GraphModule) -> set[str]:
    """Names of saved values that autograd's own operators read, not views or others that are computed again: what eager saves."""
    return {n.name for n in backward.graph.nodes if n.op == "placeholder" and any(map(is_backward_node, n.users))}


def _value(node: Any) -> Any:
    return node.meta["val"] if isinstance(node, torch.fx.Node) else node


def _layout(tangent: torch.Tensor) -> TangentLayout | None:
    size, stride = tuple(tangent.shape), tangent.stride()
    return (size, stride) if all(isinstance(n, int) for n in (*size, *stride)) else None
