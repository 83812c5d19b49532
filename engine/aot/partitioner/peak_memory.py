"""Peak memory estimate of a graph that runs operator by operator, at its hinted sizes."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Collection

import torch.fx

from engine.aot.partitioner.recompute import is_view, num_bytes, view_base_node
from engine.ir.node_values import is_scalar, results_of

Node = torch.fx.Node


def peak_bytes(graph: torch.fx.Graph, callers: Collection[Node] = ()) -> int:
    """Return the largest number of bytes alive at once, without values of unknown size.

    Values die after their last use, as in the ATen executor. Views allocate nothing. The inputs in ``callers`` do not
    count: their caller holds them.
    """
    last: dict[Node, Node] = {}
    for node in graph.nodes:
        for read in node.all_input_nodes:
            last[_storage_node(read)] = node
    dying: dict[Node, list[Node]] = defaultdict(list)
    for memory, reader in last.items():
        if reader.op != "output" and memory not in callers:
            dying[reader].append(memory)
    alive = sum(_allocated_bytes(n) for n in graph.nodes if n.op == "placeholder" and n not in callers)
    peak = alive
    for node in graph.nodes:
        if node.op != "placeholder":
            alive += _allocated_bytes(node)
            peak = max(peak, alive)
        alive -= sum(_allocated_bytes(n) for n in dying[node])
        if node.op == "call_function" and _storage_node(node) is node and node not in last:
            alive -= _allocated_bytes(node)
    return peak


def _storage_node(node: Node) -> Node:
    """Return the node whose storage a node's value uses."""
    node = view_base_node(node)
    return _storage_node(node.all_input_nodes[0]) if node.target is operator.getitem else node


def _allocated_bytes(node: Node) -> int:
    if node.op == "output" or is_view(node) or is_scalar(node) or node.target is operator.getitem:
        return 0
    value = node.meta.get("val")
    if value is None:
        return 0
    return sum(num_bytes(v, 0) for v in results_of(value) if v is not None)
