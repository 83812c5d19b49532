"""Operators that the functional graph cannot hold."""

from __future__ import annotations

import torch
import torch.fx

from engine.ir.graph_callable import GraphCallable

_UNSUPPORTED_ATTRS = frozenset(
    (
        "requires_grad_",
        "retain_grad",
        "detach_",
        "set_",
        "resize_",
        "resize_as_",
        "backward",
        "register_hook",
        "share_memory_",
        "grad",
        "rename_",
        "_coalesced_",
        "apply_",
        "map_",
    )
)
"""Methods and attributes whose effect a functional graph cannot represent."""


def check_unsupported_op(node: torch.fx.Node) -> str:
    """Return why a functional graph cannot hold the node; empty if it can."""
    if node.op == "get_attr":
        return "is an attribute of the graph, not an input"
    if node.op == "call_module":
        return "calls a module"
    if isinstance(node.target, GraphCallable) and node.target.changes_state:
        return node.target.effect_description
    name = str(node.target) if node.op == "call_method" else ""
    if node.op == "call_function" and node.target in (getattr, setattr) and len(node.args) > 1:
        name = str(node.args[1])
    if name in _UNSUPPORTED_ATTRS:
        return f"uses .{name}, which changes more than the data of a tensor"
    if node.op == "call_function" and getattr(node.target, "__module__", "") == "torch.autograd":
        return "calls autograd inside the graph"
    value = node.meta.get("example_value")
    for v in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(v, torch.Tensor) and (v.layout != torch.strided or v.is_quantized):
            return "returns a sparse or quantized tensor"
    return ""
