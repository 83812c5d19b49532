"""Find user-defined autograd functions whose backward may see undefined gradients.

Autograd calls such a backward if any of its outputs has a gradient; the others get zeros or None. The gradients it
returns then may be undefined, zero or something else. A backward graph traced with all tangents defined does not
show this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.fx
from torch.autograd.function import BackwardCFunction

from engine.ir.reachable import reachable

_ENGINE_MODULES = ("engine.aot.", "engine.graph.")
"""Packages whose autograd functions handle undefined gradients as autograd's operators do."""


def find_function_with_undefined_grads(results: Sequence[torch.Tensor]) -> str:
    """Return the name of a user function with outputs that different ``results`` depend on.

    If only some results have gradients, its backward sees undefined ones. Empty if there is no such function.
    """
    if len(results) < 2 or not any(
        _has_multiple_outputs(node) for node, _ in _reachable_edges([_gradient_edge_of(r) for r in results])
    ):
        return ""
    reached: dict[Any, dict[int, set[int]]] = {}
    for n, result in enumerate(results):
        for node, output_nr in _reachable_edges([_gradient_edge_of(result)]):
            if _has_multiple_outputs(node):
                reached.setdefault(node, {}).setdefault(output_nr, set()).add(n)
    for node, edges in reached.items():
        if len({frozenset(result_numbers) for result_numbers in edges.values()}) > 1:
            return type(node).__name__.removesuffix("Backward")
    return ""


def _gradient_edge_of(result: torch.Tensor) -> tuple[Any, int]:
    return result.grad_fn, result.output_nr


def _reachable_edges(edges: Iterable[tuple[Any, int]]) -> Iterator[tuple[Any, int]]:
    """Yield each edge of the autograd graph behind these: a node and the index of its output."""
    following = reachable(edges, lambda edge: () if edge[0] is None else edge[0].next_functions)
    return (edge for edge in following if edge[0] is not None)


def _has_multiple_outputs(node: Any) -> bool:
    return is_user_function(node) and len(node._input_metadata) > 1


def is_user_function(node: Any) -> bool:
    """Return True if an autograd node belongs to a user-defined ``autograd.Function``."""
    if not isinstance(node, BackwardCFunction):
        return False
    return not type(node)._forward_cls.__module__.startswith(_ENGINE_MODULES)  # type: ignore[attr-defined]
