"""Views made under no_grad whose base is written to in grad mode."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.fx

from engine.aot.grad_mode import nodes_with_grad_mode
from engine.aot.node_properties import example_tensor, may_mutate
from engine.aot.storage_geometry import (
    storage_id,
)
from engine.ir.traced_frame import GraphInput


def check_no_grad_views(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> str:
    """Return a reason if memory viewed under ``no_grad`` is mutated in grad mode later.

    Autograd raises in a backward through such a view.
    """
    unseen = set[int]()
    for node, is_on in nodes_with_grad_mode(graph, is_on=torch.is_grad_enabled()):
        seen = example_tensor(node.args[0]) if node.args else None
        if seen is None:
            continue
        if is_on and may_mutate(node) and storage_id(seen) in unseen and seen.requires_grad:
            return f"{node.name} mutates in grad mode a tensor of which a view was created under no_grad"
        if not is_on and not may_mutate(node):
            made = node.meta.get("example_value")
            views = [v for v in (made if isinstance(made, (tuple, list)) else (made,)) if isinstance(v, torch.Tensor)]
            unseen.update(storage_id(v) for v in views if v._is_view() and storage_id(v) == storage_id(seen))
    return ""
