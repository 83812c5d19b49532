"""Views made under no_grad whose base is written to in grad mode."""

from __future__ import annotations

import torch
import torch.fx

from engine.aot.checks.base import CheckedCall
from engine.aot.fallback_kinds import AotFallback
from engine.aot.grad_mode import nodes_with_grad_mode
from engine.aot.node_properties import example_tensors, may_mutate
from engine.aot.storage_geometry import storage_id
from engine.ir.fallback import Fallback
from engine.ir.node_values import example_tensor


def check_no_grad_views(call: CheckedCall) -> Fallback | None:
    """Return a fallback if memory viewed under ``no_grad`` is mutated in grad mode later.

    Autograd raises in a backward through such a view.
    """
    unseen = set[int]()
    for node, is_on in nodes_with_grad_mode(call.graph, is_on=torch.is_grad_enabled()):
        operand = example_tensor(node.args[0]) if node.args else None
        if operand is None:
            continue
        if is_on and may_mutate(node) and storage_id(operand) in unseen and operand.requires_grad:
            return Fallback.for_node(
                node,
                AotFallback.WRITE_AFTER_NO_GRAD_VIEW,
                "mutates in grad mode a tensor of which a view was created under no_grad",
            )
        if not is_on and not may_mutate(node):
            unseen.update(
                storage_id(v) for v in example_tensors(node) if v._is_view() and storage_id(v) == storage_id(operand)
            )
    return None
