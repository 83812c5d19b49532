"""A compiled call's backward as a graph that may stand inside of another: what the autograd node of a compiled call tells about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.fx

INLINABLE_ATTR = "_engine_inlined"
"""Attribute of an autograd Function's class: its ``InlinableBackward``."""


@dataclass(frozen=True, eq=False)
class InlinableBackward:
    """``graph`` takes saved tensors, saved numbers and a tangent for each of the positions ``differentiable`` of the call's results.

    It returns gradients; ``gradients`` says, for each input of the call, which of them is its. ``layouts`` are sizes and strides that each
    tangent must have; where they are symbols, the tangent's number of dimensions.
    """

    graph: torch.fx.GraphModule
    num_saved_tensors: int
    num_saved_scalars: int
    differentiable_results: tuple[int, ...]
    tangent_layouts: tuple[tuple[tuple[int, ...], tuple[int, ...]] | int, ...]
    grad_of_input: tuple[int | None, ...]
    take_saved_scalars: Callable[[Any, tuple[int, ...]], tuple[Any, ...]]
    """Of a node of this kind, with the positions in ``differentiable`` of the tangents that are there: the numbers that it saved, then sizes and
    strides of tangents where they are symbols, one by one; lets go of what else it holds."""
    specialize_tangents: Callable[[tuple[bool, ...]], tuple[torch.fx.GraphModule, bool]]
    """The graph for calls where only these tangents are there, with None for gradients that nothing flows to; and whether it wants zeros for
    the others."""
    to_tangent_layout: Callable[[Any, Any, Any], Any]
    """A tangent in the layout that the graph wants."""
