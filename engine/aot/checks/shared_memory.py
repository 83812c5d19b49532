"""Memory that tensors share in ways which a functional graph or autograd does not see."""

from __future__ import annotations

import torch
import torch.fx

from engine.aot.checks.base import CheckedCall
from engine.aot.fallback_kinds import AotFallback
from engine.aot.grad_mode import nodes_with_grad_mode
from engine.aot.node_properties import (
    example_tensors,
    is_as_strided,
    is_data_access,
    may_mutate,
    output_args,
    traced_tensors,
)
from engine.aot.storage_geometry import storage_id
from engine.ir.fallback import Fallback
from engine.ir.introspection.operator_facts import facts_of_node
from engine.ir.node_values import example_tensor


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


def check_inference_tensor_views(call: CheckedCall) -> Fallback | None:
    """Return a fallback if an output aliases an inference tensor input.

    Fake tensors do not know which views of inference tensors have version counters and may be mutated, and such a view
    cannot be regenerated.
    """
    if torch.is_inference_mode_enabled():
        return None
    inference_inputs = [i for i in call.inputs if i.is_inference]
    storages = {storage_id(i.fake) for i in inference_inputs if i.is_tensor}
    for node in output_args(call.graph.graph) if storages else ():
        operand = example_tensor(node)
        if (
            operand is not None
            and storage_id(operand) in storages
            and all(operand is not i.fake for i in inference_inputs)
        ):
            return Fallback.for_node(
                node, AotFallback.INFERENCE_ALIAS_RETURNED, "shares memory with an inference tensor"
            )
    return None


def check_bool_alias_writes(call: CheckedCall) -> Fallback | None:
    """Return a fallback if mutated memory is viewed both as bool and as numbers.

    Eager writes any number there; a functional graph returns 0 or 1.
    """
    tensors = [*(i.fake for i in call.inputs if i.is_tensor), *traced_tensors(call.graph)]
    truths = {storage_id(v) for v in tensors if v.dtype is torch.bool}
    both = truths & {storage_id(v) for v in tensors if v.dtype is not torch.bool}
    for node in call.graph.graph.nodes if both else ():
        if may_mutate(node) and any(
            storage_id(v) in both for a in node.all_input_nodes if (v := example_tensor(a)) is not None
        ):
            return Fallback.for_node(
                node, AotFallback.BOOL_ALIAS_WRITE, "mutates memory that is viewed both as bool and as numbers"
            )
    return None


def check_untracked_writes(call: CheckedCall) -> Fallback | None:
    """Return a fallback if gradients need writes or views that autograd does not track."""
    if not torch.is_grad_enabled():
        return None
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
                node,
                AotFallback.WRITE_AFTER_DETACH,
                "mutates, without autograd, memory of a tensor that requires grad",
            )
    return None
