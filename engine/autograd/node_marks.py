"""Backwards that go back through what a compiled function returned: its results' autograd nodes are marked, and looked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree

from engine.autograd.execution_order import gradient_edges_of

MARK_KEY = "engine"
"""Key of a node's ``metadata``: what was asked of backwards that reach it."""


def mark_outputs(result: Any, asked: Any) -> None:
    """Mark the nodes of all tensors in a result, also among the attributes of an object that is no container."""
    for tensor in _tensors_in(result):
        if tensor.grad_fn is not None:
            metadata: Any = tensor.grad_fn.metadata  # a dict: torch declares a method
            metadata[MARK_KEY] = asked


def _tensors_in(result: Any) -> Iterator[torch.Tensor]:
    for leaf in _pytree.tree_leaves(result):
        held = [leaf] if isinstance(leaf, torch.Tensor) else list(getattr(leaf, "__dict__", {}).values())
        yield from (t for t in held if isinstance(t, torch.Tensor))


def find_mark(roots: Sequence[Any]) -> Any:
    """What was asked of a backward that starts here: by the nearest mark; None where it meets none."""
    if any(isinstance(r, torch.Tensor) and not r.requires_grad for r in roots):
        return None
    work = deque(node for node, _ in gradient_edges_of(roots))
    seen = set(work)
    while work:
        node = work.popleft()
        found = node.metadata.get(MARK_KEY)
        if found is not None:
            return found
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                work.append(following)
    return None
