"""Graphs that call ``torch.autograd.grad``: what autograd frees, and leaves made inside.

The call is traced through, like the backward of a joint graph.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.fx

from engine.aot.fallback_kinds import AotFallback
from engine.aot.node_properties import example_tensors, output_args
from engine.aot.storage_geometry import storage_id
from engine.ir.fallback import FallbackRequired
from engine.ir.reachable import reachable
from engine.torch_private.functionalization import FunctionalTensorMode
from engine.torch_private.fx import disable_proxy_modes_tracing


def calls_autograd(graph: torch.fx.GraphModule) -> bool:
    """Return True if the graph computes gradients itself."""
    return bool(_grad_calls(graph))


def creates_graph_of_gradients(graph: torch.fx.GraphModule) -> bool:
    """Return True if gradients of the graph have a history themselves (``create_graph=True``)."""
    return any((*n.args, *[None] * 5)[4] or n.kwargs.get("create_graph") for n in _grad_calls(graph))


def _grad_calls(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return graph.graph.find_nodes(op="call_function", target=torch.autograd.grad)


def creates_hidden_leaf(node: torch.fx.Node) -> bool:
    """Return True if ``requires_grad_`` makes a leaf that no caller sees."""
    if node.args[1:2] == (False,) or node.kwargs.get("requires_grad") is False:
        return False
    returned = [t for a in output_args(node.graph) if isinstance(a, torch.fx.Node) for t in example_tensors(a)]
    leaves = {storage_id(t) for t in example_tensors(node)}
    return leaves.isdisjoint(storage_id(t) for t in returned if t.requires_grad)


def freed_result(
    result: torch.Tensor, position: int, leaves: Sequence[torch.Tensor], attached: Collection[int]
) -> tuple[int, ...] | None:
    """Return which ``leaves`` a result depends on through history that the graph has freed.

    None if nothing of its history is freed. ``attached`` are the positions of results that are returned as they are.

    Raises:
        FallbackRequired: a gradient exists for some leaves only, or the result is not simply returned.
    """
    nodes = _nodes_behind(result.grad_fn, past_freed=True)
    if not any(map(_is_freed, nodes)) or not _backward_raises(result, [n.variable for n in nodes if _is_leaf(n)]):
        return None
    if any(map(_is_leaf, _nodes_behind(result.grad_fn, past_freed=False))) or position not in attached:
        raise FallbackRequired(
            AotFallback.AUTOGRAD_IN_GRAPH, "an output depends in part on history that autograd.grad has freed"
        )
    reached = {id(n.variable) for n in nodes if _is_leaf(n)}
    return tuple(n for n, leaf in enumerate(leaves) if id(leaf) in reached)


def _nodes_behind(start: Any, *, past_freed: bool) -> list[Any]:
    """Return the autograd nodes that a backward from ``start`` reaches."""

    def behind(node: Any) -> list[Any]:
        return [n for n, _ in node.next_functions if n is not None] if past_freed or not _is_freed(node) else []

    return list(reachable([start], behind))


def _is_leaf(node: Any) -> bool:
    return hasattr(node, "variable")


def _backward_raises(result: torch.Tensor, leaves: Sequence[torch.Tensor]) -> bool:
    """Return True if a backward from ``result`` raises because history is freed."""
    try:
        with disable_proxy_modes_tracing(), FunctionalTensorMode(), torch.no_grad():
            torch.autograd.grad(result, leaves, torch.ones_like(result), retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        return "a second time" in str(error)
    return False


def _is_freed(node: Any) -> bool:
    """Return True if autograd may have freed a tensor that the node saved.

    Before torch 2.13, it is also True for nodes that saved their own result.
    """
    try:
        for name in dir(node):
            if name.startswith("_saved_") or name == "saved_tensors":
                getattr(node, name)
    except RuntimeError:
        return True
    return False
