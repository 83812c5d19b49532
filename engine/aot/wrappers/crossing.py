"""What an autograd node knows of the compiled call that it stands for: which results and inputs gradients flow through, and what is saved."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from engine.aot.analyse import output_args
from engine.aot.functionalize import as_computed, is_made_by_view
from engine.aot.joint import Joint
from engine.aot.partition import Halves
from engine.ir.graph import is_backward

Layout = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Crossing:
    """What the autograd node needs to know, in positions of the forward's inputs and results.

    The forward graph returns ``results`` results, ``tensors`` saved tensors and ``numbers`` saved numbers. ``layouts`` are sizes and
    strides that the backward expects of the tangent of each position in ``differentiable``; None where they are symbols, and are those
    of the result of the call.
    """

    inputs: int
    results: int
    tangents: tuple[str, ...]
    """Names of the backward graph's placeholders for tangents."""
    tensors: int
    numbers: int
    differentiable: tuple[int, ...]
    plain: tuple[int, ...]
    """Results that are tensors and need no gradient."""
    needing: tuple[int, ...]
    layouts: tuple[Layout | None, ...]
    views: tuple[int, ...] = ()
    """Results that the graph computes as views, where eager's tensor is none: or they could not be written to."""
    counted: tuple[int, ...] = ()
    """Inputs that have version counters."""
    writes: tuple[tuple[int, int], ...] = ()
    """``Plan.writes``: version counters must be right before a result is saved."""
    apart: tuple[int, ...] = ()
    """Inputs that require grad, and that no gradient flows to: autograd must not take what they come from for a part of this."""
    detached: tuple[int, ...] = ()
    """Saved tensors that are such inputs: saved without what they come from."""
    returned: frozenset[int] = frozenset()
    """Saved tensors that are results as well: autograd gives them back together with all others only."""
    weak: tuple[int, ...] = ()
    """Inputs that the node must not keep alive: it may ask for them once more (``Again``), but eager's would have let go of them."""
    whole: tuple[tuple[int, int], ...] = ()
    """Saved tensors with the inputs that they are, where the caller could take them out of autograd's graph before eager reads them."""

    @property
    def is_watched(self) -> bool:
        """Whether it must be known which tangents have come: torch only knows that a node's saved tensors are freed, all of them."""
        return len(self.differentiable) > 1 or not self.tensors


def crossing(joint: Joint, halves: Halves, requiring: Collection[int], *, is_given: bool) -> Crossing:
    """What a joint graph and its halves mean for the autograd node.

    ``requiring`` are the inputs that require grad. ``is_given``: the inputs are the caller's, not made of them.
    """
    nodes = output_args(halves.forward.graph)
    tensors = [k for k, n in enumerate(nodes[: halves.results]) if isinstance(_value(n), torch.Tensor)]
    flowing = {n for n, g in zip(joint.needing, output_args(halves.backward.graph), strict=True) if g is not None}
    apart = tuple(sorted(set(requiring) - flowing)) if flowing else ()
    names = {n.name for k, n in enumerate(halves.forward.graph.nodes) if k in apart}
    shown = {str(n) for n in nodes[: halves.results]}
    places = {n.name: k for k, n in enumerate(halves.forward.graph.nodes) if k in flowing} if is_given else {}
    read = _read_by_autograd(halves.backward)
    return Crossing(
        inputs=len(joint.inputs),
        results=halves.results,
        tangents=halves.tangent_names,
        tensors=len(halves.tensors),
        numbers=len(halves.numbers),
        differentiable=joint.differentiable,
        plain=tuple(k for k in tensors if k not in joint.differentiable),
        needing=joint.needing,
        layouts=tuple(map(_layout, halves.tangents)),
        counted=tuple(n for n, i in enumerate(joint.plan.inputs) if i.is_tensor and i.is_counted),
        views=tuple(k for k in tensors if is_made_by_view(nodes[k])),
        writes=as_computed(joint.plan, halves.forward).writes,
        apart=apart,
        detached=tuple(n for n, name in enumerate(halves.tensors) if name in names),
        returned=frozenset(n for n, name in enumerate(halves.tensors) if name in shown),
        weak=tuple(n for n, i in enumerate(joint.plan.inputs) if i.is_tensor and is_given),
        whole=tuple(
            (n, places[name])
            for n, name in enumerate(halves.tensors)
            if name in places and name in read and not isinstance(joint.inputs[places[name]], torch.nn.Parameter)
        ),
    )


def _read_by_autograd(backward: torch.fx.GraphModule) -> set[str]:
    """Names of saved values that autograd's own operators read, not views or others that are computed again: what eager saves."""
    return {n.name for n in backward.graph.nodes if n.op == "placeholder" and any(map(is_backward, n.users))}


def _value(node: Any) -> Any:
    return node.meta["val"] if isinstance(node, torch.fx.Node) else node


def _layout(tangent: torch.Tensor) -> Layout | None:
    size, stride = tuple(tangent.shape), tangent.stride()
    return (size, stride) if all(isinstance(n, int) for n in (*size, *stride)) else None
