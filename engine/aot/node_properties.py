"""Properties of the nodes of a traced graph: their example values, and what they write."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
import torch.fx

from engine.ir.introspection.operator_facts import facts_of_node
from engine.ir.node_values import example_tensor, results_of, tensors_in
from engine.torch_private.pytree import tree_leaves


def output_args(graph: torch.fx.Graph) -> tuple[Any, ...]:
    """Return the arguments of the output node as a flat tuple."""
    return results_of(next(n for n in reversed(graph.nodes) if n.op == "output").args[0])


def traced_tensors(graph: torch.fx.GraphModule) -> Iterator[torch.Tensor]:
    """Yield the example tensors of all nodes, lists flattened."""
    return (t for node in graph.graph.nodes for t in example_tensors(node))


def example_tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    """Return the fake tensors that the tracer stored for a node's result."""
    return tensors_in(node.meta.get("example_value"))


def is_data_access(node: torch.fx.Node) -> bool:
    """Return True if the node reads ``tensor.data``."""
    return bool(node.target is getattr and node.args[1] == "data")


def is_as_strided(node: torch.fx.Node) -> bool:
    """Return True if a node addresses the storage directly, beyond its operand."""
    return facts_of_node(node).addresses_storage


def may_mutate(node: torch.fx.Node) -> bool:
    """Return True if a traced node may mutate an argument. Errs on the side of True."""
    if node.op not in ("call_function", "call_method"):
        return False
    if "out" in node.kwargs or node.kwargs.get("inplace") is True:
        return True
    facts = facts_of_node(node)
    if facts.writes or facts.running_stats:
        return True
    parameters = getattr(getattr(node.target, "__code__", None), "co_varnames", ())
    return "inplace" in parameters and any(a is True for a in node.args)


def written_tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    """Return the example tensors that a traced node writes, if it mutates its arguments."""
    targets = node.kwargs.get("out", node.args[0] if node.args else None)
    return [t for n in tree_leaves(targets) if (t := example_tensor(n)) is not None]


def dependents_of(graph: torch.fx.Graph, tangents: Collection[torch.fx.Node]) -> set[torch.fx.Node]:
    """Return ``tangents`` and all nodes that depend on any of them."""
    late = set(tangents)
    for node in graph.nodes:
        if any(n in late for n in node.all_input_nodes):
            late.add(node)
    return late
