"""Operators that the functional graph cannot contain."""

from __future__ import annotations

import torch
import torch.fx

from engine.aot.checks.base import CheckedCall
from engine.aot.fallback_kinds import AotFallback
from engine.aot.gradients.autograd_calls import calls_autograd, creates_hidden_leaf
from engine.aot.node_properties import example_tensors
from engine.ir.fallback import Fallback
from engine.ir.graph_callable import graph_callable_of

_UNSUPPORTED_ATTRS = frozenset(
    (
        "requires_grad_ retain_grad detach_ set_ resize_ resize_as_ backward register_hook share_memory_ "
        "grad rename_ _coalesced_ apply_ map_"
    ).split()
)
"""Methods and attributes whose effect a functional graph cannot represent."""


def check_unsupported_ops(call: CheckedCall) -> Fallback | None:
    """Return a fallback if a functional graph cannot contain a node."""
    differentiates = call.trains and calls_autograd(call.graph)
    checked = (n for n in call.graph.graph.nodes if not (differentiates and _is_part_of_differentiation(n)))
    return next((fallback for node in checked if (fallback := _check_node(node)) is not None), None)


def _is_part_of_differentiation(node: torch.fx.Node) -> bool:
    """Return True for ``torch.autograd.grad`` and the calls that create its leaves."""
    if node.target == "requires_grad_":
        return node.all_input_nodes[0].op != "placeholder" and creates_hidden_leaf(node)
    return node.target is torch.autograd.grad


def _keeps_bodies(node: torch.fx.Node) -> bool:
    """Return True for a higher-order operator whose body a functional graph can contain."""
    return type(node.target).__module__.startswith("torch._higher_order_ops") and str(node.target) in BODY_OPS


BODY_OPS = frozenset(("cond", "while_loop", "scan", "associative_scan", "flex_attention"))
"""Higher-order operators with a functional form.

ATen runs them; kernels compute the rest of the graph.
"""


def _check_node(node: torch.fx.Node) -> Fallback | None:
    if node.op == "get_attr" and not (node.users and all(_keeps_bodies(user) for user in node.users)):
        return Fallback.for_node(node, AotFallback.ATTRIBUTE_NODE, "is an attribute of the graph, not an input")
    called = graph_callable_of(node)
    if called.changes_state:
        return Fallback.for_node(node, AotFallback.STATE_CHANGING_CALL, called.effect_description)
    name = str(node.target) if node.op == "call_method" else ""
    if node.op == "call_function" and node.target in (getattr, setattr) and len(node.args) > 1:
        name = str(node.args[1])
    if name in _UNSUPPORTED_ATTRS:
        return Fallback.for_node(
            node, AotFallback.TENSOR_METADATA_CHANGE, f"uses .{name}, which changes more than the data of a tensor"
        )
    if node.op == "call_function" and getattr(node.target, "__module__", "") == "torch.autograd":
        return Fallback.for_node(node, AotFallback.AUTOGRAD_IN_GRAPH, "calls autograd inside the graph")
    if any(t.layout != torch.strided or t.is_quantized for t in example_tensors(node)):
        return Fallback.for_node(node, AotFallback.SPARSE_OR_QUANTIZED_VALUE, "returns a sparse or quantized tensor")
    return None
