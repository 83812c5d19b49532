"""The compiled backward of a call, as a graph that compiled autograd can inline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.fx

INLINABLE_ATTR = "_engine_inlined"
"""Attribute of an autograd.Function class: its ``InlinableBackward``."""


@dataclass(frozen=True, eq=False)
class InlinableBackward:
    """A backward graph with its calling convention.

    ``graph`` takes the saved tensors, the saved scalars and one tangent for each result position in
    ``differentiable_results``. It returns gradients; ``grad_of_input`` holds, for each input of the call, the
    index of its gradient. ``tangent_layouts`` holds the sizes and strides that each tangent must have, or the
    tangent's number of dimensions if they are symbols.
    """

    graph: torch.fx.GraphModule
    num_saved_tensors: int
    num_saved_scalars: int
    differentiable_results: tuple[int, ...]
    tangent_layouts: tuple[tuple[tuple[int, ...], tuple[int, ...]] | int, ...]
    grad_of_input: tuple[int | None, ...]
    take_saved_scalars: Callable[[Any, tuple[int, ...]], tuple[Any, ...]]
    """Return the scalars that a node of this class saved, then tangent sizes and strides.

    Sizes and strides are returned one by one, and only where they are symbols. The second argument lists the
    defined tangents as positions in ``differentiable_results``. Also releases the other objects that the node
    holds.
    """
    specialize_tangents: Callable[[tuple[bool, ...]], tuple[torch.fx.GraphModule, bool]]
    """Return the graph for calls with only these tangents defined, and a flag.

    The graph returns None for undefined gradients. The flag is True if the graph needs zeros for the other
    tangents.
    """
    to_tangent_layout: Callable[[Any, Any, Any], Any]
    """Convert a tangent to the layout that the graph expects."""
