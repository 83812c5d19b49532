"""Find in which grad mode the nodes of a traced graph run, and if it needs autograd."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.fx

from engine.aot.layout_mutation import mutates_layout
from engine.aot.node_properties import example_tensors, may_mutate, traced_tensors
from engine.aot.storage_geometry import storage_id
from engine.ir.node_values import example_tensor
from engine.ir.traced_frame import GraphInput
from engine.torch_private.autograd import set_grad_enabled

GRAD_MODE_CALLS = (set_grad_enabled, torch.set_grad_enabled)
"""Calls that set the grad mode inside a graph."""


def needs_autograd(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> bool:
    """Return True if this call must run under autograd.

    True if a node creates a tensor with ``requires_grad=True``, or if grad mode is on and an input or an intermediate
    requires grad.
    """
    if any(n.kwargs.get("requires_grad") is True for n in graph.graph.nodes):
        return True
    switched_on = any(n.target in GRAD_MODE_CALLS and n.args[:1] != (False,) for n in graph.graph.nodes)
    # Without grad mode no intermediate requires grad, even if the fake tensor of a view says so.
    if not torch.is_grad_enabled() and not switched_on:
        return False
    return any(i.requires_grad for i in inputs) or any(t.requires_grad for t in traced_tensors(graph))


def nodes_with_grad_mode(graph: torch.fx.GraphModule, *, is_on: bool) -> Iterator[tuple[torch.fx.Node, bool]]:
    """Yield each node except grad mode calls, with the grad mode at that node.

    ``is_on`` is the grad mode where the graph starts.
    """
    for node in graph.graph.nodes:
        if node.target in GRAD_MODE_CALLS:
            is_on = node.args[:1] != (False,)
        else:
            yield node, is_on


def inputs_with_layout_mutated_in_grad_mode(graph: torch.fx.GraphModule, *, is_on: bool) -> set[int]:
    """Return the positions of inputs whose layout changes in place in grad mode."""
    changed = [
        example_tensor(node.args[0])
        for node, on in nodes_with_grad_mode(graph, is_on=is_on)
        if on and mutates_layout(node)
    ]
    inputs = [n.meta.get("example_value") for n in graph.graph.nodes if n.op == "placeholder"] if changed else []
    return {k for k, graph_input in enumerate(inputs) if any(graph_input is c for c in changed)}


def inputs_read_after_last_write(graph: torch.fx.GraphModule, *, is_on: bool) -> frozenset[int]:
    """Return the positions of inputs whose ``grad_fn`` is read after the last write to them."""
    input_numbers = {n: k for k, n in enumerate(n for n in graph.graph.nodes if n.op == "placeholder")}
    storages: dict[int, int] = {}
    for node, on in nodes_with_grad_mode(graph, is_on=is_on):
        if may_mutate(node):
            touched = {storage_id(t) for a in node.all_input_nodes for t in example_tensors(a)}
            storages = {k: storage for k, storage in storages.items() if storage not in touched}
        elif on and any(t.requires_grad for t in example_tensors(node)):
            read = (a for a in node.all_input_nodes if a in input_numbers)
            storages |= {input_numbers[a]: storage_id(t) for a in read for t in example_tensors(a)}
    return frozenset(storages)
