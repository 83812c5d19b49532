"""Finds functions of the user's own whose backward is called with gradients that are there in one call and missing in the next.

Autograd calls it where any of its results is reached, with zeros, or with None, for those that are not. What it then gives, zeros and not nothing
or something else altogether, cannot be told from a backward graph that was traced with all gradients there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx
from torch.autograd.function import BackwardCFunction

_ENGINE_MODULES = ("engine.aot.", "engine.graph.")
"""Packages whose own functions give what autograd's operators give."""


def find_function_with_undefined_grads(results: Sequence[torch.Tensor]) -> str:
    """Name of such a function behind ``results``, through any of which gradients may come back, or not; empty when there is none."""
    if len(results) < 2 or not any(
        _has_multiple_outputs(node) for node, _ in _reachable_edges([_edge(r) for r in results])
    ):
        return ""
    reached: dict[Any, dict[int, set[int]]] = {}
    for n, result in enumerate(results):
        for node, place in _reachable_edges([_edge(result)]):
            if _has_multiple_outputs(node):
                reached.setdefault(node, {}).setdefault(place, set()).add(n)
    for node, places in reached.items():
        if len({frozenset(found) for found in places.values()}) > 1:
            return type(node).__name__.removesuffix("Backward")
    return ""


def _edge(result: torch.Tensor) -> tuple[Any, int]:
    return result.grad_fn, result.output_nr


def _reachable_edges(todo: list[tuple[Any, int]]) -> Iterator[tuple[Any, int]]:
    """Each edge of autograd's graph that gradients take from these on: a node, and which of its results it is of."""
    known: set[tuple[Any, int]] = set()
    nodes: set[Any] = set()
    while todo:
        edge = todo.pop()
        node = edge[0]
        if node is None or edge in known:
            continue
        known.add(edge)
        yield edge
        if node not in nodes:
            nodes.add(node)
            todo += node.next_functions


def _has_multiple_outputs(node: Any) -> bool:
    return is_user_function(node) and len(node._input_metadata) > 1


def is_user_function(node: Any) -> bool:
    """Whether a node of autograd's graph is a function of the user's own."""
    if not isinstance(node, BackwardCFunction):
        return False
    return not type(node)._forward_cls.__module__.startswith(_ENGINE_MODULES)  # type: ignore[attr-defined]
