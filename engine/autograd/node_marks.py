"""Marks on autograd nodes of compiled outputs, so that their backwards are captured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from engine.autograd.execution_order import gradient_edges_of
from engine.ir.introspection.autograd_nodes import autograd_nodes
from engine.ir.node_values import tensors_by_position, tensors_in
from engine.torch_private.pytree import tree_leaves

MARK_KEY = "engine"
"""Key in a node's ``metadata`` of the capture settings for backwards that reach the node."""


def mark_outputs(result: Any, requested: Any) -> None:
    """Mark the autograd nodes of all tensors in a result.

    Attributes of a leaf object that is no container are included.
    """
    for tensor in _tensors_in(result):
        if tensor.grad_fn is not None:
            metadata: Any = tensor.grad_fn.metadata  # a dict at run time; torch's stub declares a method
            metadata[MARK_KEY] = requested


def _tensors_in(result: Any) -> Iterator[torch.Tensor]:
    for leaf in tree_leaves(result):
        attributes = getattr(leaf, "__dict__", {}).values()
        yield from tensors_in(leaf) or tensors_by_position(attributes).values()


def find_mark(roots: Sequence[Any]) -> Any:
    """Return the mark that a backward from these roots reaches first; None if it reaches none."""
    if any(not r.requires_grad for r in tensors_in(roots)):
        return None
    for node in autograd_nodes(node for node, _ in gradient_edges_of(roots)):
        mark = node.metadata.get(MARK_KEY)
        if mark is not None:
            return mark
    return None
