"""Outputs that share storage without being views for autograd."""

from __future__ import annotations

import torch
import torch.fx

from engine.aot.checks.base import CheckedCall
from engine.aot.fallback_kinds import AotFallback
from engine.aot.node_properties import example_tensors, may_mutate
from engine.aot.storage_geometry import storage_id
from engine.ir.fallback import Fallback
from engine.ir.introspection.operator_facts import facts_of_node


def check_unsafe_views(call: CheckedCall) -> Fallback | None:
    """Return a fallback if a result shares memory but is not a view (``unsafe_chunk``).

    It must also be returned or mutated. A functional graph would create new tensors instead.
    """
    shared: dict[int, torch.fx.Node] = {}
    for node in call.graph.graph.nodes:
        # A dtype view is not a view for autograd either, but its operator declares that it aliases.
        if not facts_of_node(node).hides_alias:
            continue
        operands = [t for a in node.all_input_nodes for t in example_tensors(a)]
        for result in example_tensors(node):
            if result._is_view() or result.is_inference() or any(result is t for t in operands):
                continue
            if (storage := storage_id(result)) in map(storage_id, operands):
                shared.setdefault(storage, node)
    for node in call.graph.graph.nodes if shared else ():
        touched = [t for a in node.all_input_nodes for t in example_tensors(a)]
        part = next((n for t in touched if (n := shared.get(storage_id(t))) is not None), None)
        if part is not None and (node.op == "output" or may_mutate(node)):
            use = "returned" if node.op == "output" else "mutated"
            return Fallback.for_node(
                part, AotFallback.UNSAFE_VIEW_ESCAPES, f"shares memory that is {use}, but is not a view for autograd"
            )
    return None
