"""Writes and views that autograd does not see."""

from __future__ import annotations

from engine.aot.checks.base import CheckedCall
from engine.aot.fallback_kinds import AotFallback
from engine.aot.node_properties import is_as_strided, is_data_access, may_mutate, traced_tensors
from engine.aot.storage_geometry import storage_id
from engine.ir.fallback import Fallback
from engine.ir.introspection.operator_facts import facts_of_node
from engine.ir.node_values import example_tensor


def check_untracked_writes(call: CheckedCall) -> Fallback | None:
    """Return a fallback if gradients need writes or views that autograd does not track."""
    values = [*(i.fake for i in call.inputs if i.is_tensor), *traced_tensors(call.graph)]
    needing = {storage_id(v) for v in values if v.requires_grad}
    retyped: set[int] = set()
    for node in call.graph.graph.nodes:
        operand = example_tensor(node.args[0]) if needing and node.args else None
        if operand is None or storage_id(operand) not in needing:
            continue
        if id(operand) in retyped and may_mutate(node):
            return Fallback.for_node(
                node,
                AotFallback.WRITE_TO_DTYPE_VIEW,
                "mutates a view of another dtype, which autograd does not track as a view",
            )
        result = example_tensor(node)
        if (
            result is not None
            and result.dtype != operand.dtype
            and not result._is_view()
            and storage_id(result) == storage_id(operand)
        ):
            retyped.add(id(result))
        if is_as_strided(node):
            return Fallback.for_node(
                node, AotFallback.AS_STRIDED_NEEDS_GRAD, "uses as_strided, and gradients flow through it"
            )
        detached = example_tensor(node) if facts_of_node(node).detaches or is_data_access(node) else None
        if detached is not None and detached._version != node.meta.get("version", 0):
            return Fallback.for_node(
                node,
                AotFallback.WRITE_AFTER_DETACH,
                "is mutated, and gradients flow through the tensor that it was detached from",
            )
        if may_mutate(node) and not operand.requires_grad:
            return Fallback.for_node(
                node, AotFallback.WRITE_AFTER_DETACH, "mutates, without autograd, memory of a tensor that requires grad"
            )
    return None
