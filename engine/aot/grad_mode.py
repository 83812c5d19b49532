"""Grad mode along a traced graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.fx

from engine.aot.layout_mutation import mutates_layout
from engine.aot.node_properties import example_tensor, example_tensors, flat_example_values, may_mutate
from engine.aot.storage_geometry import (
    storage_id,
)
from engine.ir.traced_frame import GraphInput

GRAD_MODE_CALLS = (torch._C._set_grad_enabled, torch.set_grad_enabled)
"""Calls that switch gradients on or off from inside a graph."""


def needs_autograd(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> bool:
    """Whether autograd must see this call: under grad mode an input requires grad, or something made inside does."""
    if any(n.kwargs.get("requires_grad") is True for n in graph.graph.nodes):
        return True
    switched_on = any(n.target in GRAD_MODE_CALLS and n.args[:1] != (False,) for n in graph.graph.nodes)
    # Without grad mode nothing made from an input requires grad, though fake views may say so.
    if not torch.is_grad_enabled() and not switched_on:
        return False
    return any(isinstance(i.example_value, torch.Tensor) and i.example_value.requires_grad for i in inputs) or any(
        isinstance(v, torch.Tensor) and v.requires_grad for v in flat_example_values(graph)
    )


def nodes_with_grad_mode(graph: torch.fx.GraphModule, *, is_on: bool) -> Iterator[tuple[torch.fx.Node, bool]]:
    """All nodes but switches of grad mode, each with whether it is on there; ``is_on``: where the graph begins."""
    for node in graph.graph.nodes:
        if node.target in GRAD_MODE_CALLS:
            is_on = node.args[:1] != (False,)
        else:
            yield node, is_on


def inputs_with_layout_mutated_in_grad_mode(graph: torch.fx.GraphModule, *, is_on: bool) -> set[int]:
    """Positions of inputs whose layout an operator changes in place in grad mode."""
    changed = [
        example_tensor(node.args[0])
        for node, on in nodes_with_grad_mode(graph, is_on=is_on)
        if on and mutates_layout(node)
    ]
    inputs = [n.meta.get("example_value") for n in graph.graph.nodes if n.op == "placeholder"] if changed else []
    return {k for k, given in enumerate(inputs) if any(given is c for c in changed)}


def inputs_read_after_last_write(graph: torch.fx.GraphModule, *, is_on: bool) -> frozenset[int]:
    """Positions of inputs whose history autograd looks at after the last write to their memory."""
    places = {n: k for k, n in enumerate(n for n in graph.graph.nodes if n.op == "placeholder")}
    found: dict[int, int] = {}
    for node, on in nodes_with_grad_mode(graph, is_on=is_on):
        if may_mutate(node):
            touched = {storage_id(t) for a in node.all_input_nodes for t in example_tensors(a)}
            found = {k: storage for k, storage in found.items() if storage not in touched}
        elif on and any(t.requires_grad for t in example_tensors(node)):
            read = (a for a in node.all_input_nodes if a in places)
            found |= {places[a]: storage_id(t) for a in read for t in example_tensors(a)}
    return frozenset(found)
