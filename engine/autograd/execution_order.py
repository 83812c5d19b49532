"""Order in which eager autograd runs the nodes of a backward.

Eager stores ready nodes in a heap, latest forward operation first (``torch/csrc/autograd/engine.cpp``).
Leaves precede all other nodes. Ties follow from the heap algorithm, here that of GNU's C++ library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.group_pairs import group_pairs
from engine.ir.reachable import reachable

NodeEdge = tuple[Any, int]
"""Autograd node and the index of one of its inputs."""


@dataclass(frozen=True)
class AutogradNode:
    """Node of autograd's graph in torch's walk.

    ``next_edges``: for each output, (walk index of a node, index of its input); None if the output leads nowhere.
    ``sequence_nr`` is larger for later forward operations, and largest for leaves.
    """

    name: str
    sequence_nr: int
    next_edges: tuple[tuple[int, int] | None, ...]
    node: Any = None


def walk_autograd_graph(roots: Sequence[NodeEdge], target_edges: Sequence[NodeEdge] = ()) -> tuple[AutogradNode, ...]:
    """Return the nodes of a backward in the order of torch's walk, graph root first.

    ``target_edges``: if not empty, visit only nodes that lead to these edges, and the nodes of these edges.
    """
    nodes, edges = _reachable(roots)
    useful = _nodes_leading_to(nodes, edges, [n for n, _ in target_edges]) if target_edges else None
    # The graph root has index -1.
    waits = [0] * len(nodes)
    for targets in (edges[-1], *(edges[k] for k in range(len(nodes)))):
        for target in targets:
            if target is not None:
                waits[target[0]] += 1
    order: list[int] = []
    work = [-1]
    while work:
        node_index = work.pop()
        order.append(node_index)
        for target in edges[node_index]:
            if target is None or (useful is not None and target[0] not in useful):
                continue
            waits[target[0]] -= 1
            if waits[target[0]] == 0:
                work.append(target[0])
    index = {node_index: n for n, node_index in enumerate(order)}
    steps = []
    for node_index in order:
        following = tuple(None if t is None or t[0] not in index else (index[t[0]], t[1]) for t in edges[node_index])
        if node_index < 0:
            steps.append(AutogradNode("torch::autograd::GraphRoot", _MAX_SEQUENCE_NR, following))
        else:
            node = nodes[node_index]
            steps.append(AutogradNode(node.name(), node._sequence_nr(), following, node))
    return tuple(steps)


_MAX_SEQUENCE_NR = 2**64 - 1
_Edges = dict[int, tuple[tuple[int, int] | None, ...]]


def _reachable(roots: Sequence[NodeEdge]) -> tuple[list[Any], _Edges]:
    nodes: list[Any] = []
    indices: dict[Any, int] = {}

    def place_of(node: Any) -> int:
        if node not in indices:
            indices[node] = len(nodes)
            nodes.append(node)
        return indices[node]

    edges: _Edges = {-1: tuple((place_of(node), nr) for node, nr in roots)}
    expanded = 0
    while expanded < len(nodes):
        edges[expanded] = tuple(None if n is None else (place_of(n), nr) for n, nr in nodes[expanded].next_functions)
        expanded += 1
    return nodes, edges


def _nodes_leading_to(nodes: Sequence[Any], edges: _Edges, target_edges: Sequence[Any]) -> set[int]:
    """Return the indexes of the wanted nodes and of all nodes that lead to one of them."""
    into = group_pairs((target[0], n) for n in range(len(nodes)) for target in edges[n] if target is not None)
    leading = [n for n, node in enumerate(nodes) if any(node is w for w in target_edges)]
    return set(reachable(leading, lambda n: into.get(n, ())))


def eager_execution_order(nodes: Sequence[AutogradNode]) -> tuple[int, ...]:
    """Return the indexes of ``nodes`` in the order in which eager runs them."""
    waits = [0] * len(nodes)
    for node in nodes:
        for target in node.next_edges:
            if target is not None:
                waits[target[0]] += 1
    ready: list[int] = []
    order: list[int] = []

    def is_less(a: int, b: int) -> bool:
        return nodes[a].sequence_nr < nodes[b].sequence_nr

    push_heap(ready, 0, is_less)
    while ready:
        node_index = pop_heap(ready, is_less)
        order.append(node_index)
        for target in nodes[node_index].next_edges:
            if target is None:
                continue
            waits[target[0]] -= 1
            if waits[target[0]] == 0:
                push_heap(ready, target[0], is_less)
    return tuple(order)


def push_heap(heap: list[int], item: int, is_less: Callable[[int, int], bool]) -> None:
    """Push onto a max-heap as ``std::push_heap``; equal items are not swapped."""
    heap.append(item)
    hole = len(heap) - 1
    _sift_up(heap, hole, item, is_less)


def pop_heap(heap: list[int], is_less: Callable[[int, int], bool]) -> int:
    """Pop the greatest item as ``std::pop_heap``.

    The hole sinks to a leaf, and the last item rises from there.
    """
    greatest, last = heap[0], heap.pop()
    if not heap:
        return greatest
    hole, size = 0, len(heap)
    while 2 * hole + 2 < size:
        child = 2 * hole + 2
        if is_less(heap[child], heap[child - 1]):
            child -= 1
        heap[hole] = heap[child]
        hole = child
    if 2 * hole + 1 == size - 1:
        heap[hole] = heap[size - 1]
        hole = size - 1
    _sift_up(heap, hole, last, is_less)
    return greatest


def _sift_up(heap: list[int], hole: int, item: int, is_less: Callable[[int, int], bool]) -> None:
    while hole > 0 and is_less(heap[(hole - 1) // 2], item):
        heap[hole] = heap[(hole - 1) // 2]
        hole = (hole - 1) // 2
    heap[hole] = item


def gradient_edges_of(tensors: Sequence[Any]) -> list[NodeEdge]:
    """Return the gradient edges of tensors; gradient edges are accepted too."""
    return [_gradient_edge(t) for t in tensors]


def _gradient_edge(tensor: Any) -> NodeEdge:
    if not isinstance(tensor, torch.Tensor):
        return tensor.node, tensor.output_nr
    edge: Any = torch.autograd.graph.get_gradient_edge(tensor)
    return edge.node, edge.output_nr
