"""Inputs, operators and calls that the functional graph cannot contain."""

from __future__ import annotations

import torch
import torch.fx

from engine.aot.checks.base import CheckedCall
from engine.aot.fallback_kinds import AotFallback
from engine.aot.gradients.autograd_calls import calls_autograd, creates_hidden_leaf
from engine.aot.layout_mutation import is_layout_mutated
from engine.aot.node_properties import example_tensors
from engine.aot.storage_geometry import storage_id
from engine.ir.fallback import Fallback
from engine.ir.graph_callable import graph_callable_of

_UNSUPPORTED_ATTRS = frozenset(
    (
        "requires_grad_ retain_grad detach_ set_ resize_ resize_as_ backward register_hook share_memory_ "
        "grad rename_ _coalesced_ apply_ map_"
    ).split()
)
"""Methods and attributes whose effect a functional graph cannot represent."""


def check_unsupported_inputs(call: CheckedCall) -> Fallback | None:
    """Return a fallback if a value cannot be an input of a functional graph."""
    for i in call.inputs:
        real = i.example_value
        if not i.has_real_tensor:
            continue
        if unsupported := _why_unsupported(real, trains=call.trains):
            kind, description = unsupported
            return Fallback(kind, f"{i.name} is {description}")
        if real.requires_grad and is_layout_mutated(i.fake, real):
            return Fallback(
                AotFallback.LAYOUT_MUTATION_NEEDS_GRAD,
                f"an in-place operation changes the shape or strides of {i.name}, which requires grad",
            )
    return None


def _why_unsupported(real: torch.Tensor, *, trains: bool) -> tuple[AotFallback, str] | None:
    if type(real) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return AotFallback.SUBCLASS_INPUT, f"a {type(real).__name__}, a tensor subclass"
    if real.layout != torch.strided or real.is_quantized or real.is_meta or real.is_mkldnn:
        return AotFallback.NON_STRIDED_INPUT, "not a strided tensor"
    if trains and real.is_inference():
        description = "an inference tensor, which autograd cannot save for backward"
        return AotFallback.INFERENCE_INPUT_NEEDS_GRAD, description
    if real.is_conj() or real.is_neg():
        return AotFallback.LAZY_CONJUGATE_INPUT, "a lazily conjugated or negated view"
    if real._base is not None and storage_id(real._base) != storage_id(real):
        return AotFallback.REPLACED_STORAGE_INPUT, "a view whose storage differs from the storage of its base"
    return None


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


def check_python_callables(call: CheckedCall) -> Fallback | None:
    """Return a fallback if the graph runs user Python that may read objects the frame mutates."""
    for node in call.traced.graph.nodes if call.changes_objects else ():
        if graph_callable_of(node).runs_user_python:
            return Fallback.for_node(
                node,
                AotFallback.CALL_READS_MUTATED_OBJECTS,
                "calls a Python function that may read objects which the traced code mutates",
            )
    return None
